"""What looks like a secret does not leave the node; what does not stays readable."""

from pathlib import Path

import pytest

from eagle_eye.redaction import last_lines, redact


@pytest.mark.parametrize(
    ("text", "secret"),
    [("password=hunter2 next", "hunter2"), ("DB_PASSWORD: 'a b c'", "a b c"), ('{"api_key": "k123456"}', "k123456"),
     ("--hf-token abcdef train", "abcdef"), ("Authorization: Bearer abc.def.ghi", "abc.def.ghi"),
     ("https://me:pa55@host/x", "pa55"), ("using hf_AbCdEfGhIjKlMnOp", "hf_AbCd"), ("AKIAIOSFODNN7EXAMPLE1", "IOSFODNN7"),
     ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI", "wJalrX"),
     ('x"secret": "abcdef"', "abcdef"), ("1http://me:pa55@host", "pa55"), ("x" * 100 + "://me:pa55@host", "pa55"), ("a---hf-token abcdef", "abcdef"), ("x" * 500 + "_token=abcdef", "abcdef"),
     ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----", "MIIE")],
)  # fmt: skip
def test_secrets_are_hidden(text: str, secret: str) -> None:
    assert secret not in redact(text)
    assert "[redacted]" in redact(text)


@pytest.mark.parametrize(
    "text", ["step 12 loss 2.31 tokens 4096/s", "RuntimeError: shape [3, 4] at layer 7", "saved /data/step-10.safetensors"]
)
def test_ordinary_lines_stay(text: str) -> None:
    assert redact(text) == text


SECRET = "S3cr3tXYZ987abcDEF"
HEX = "0123456789abcdef" * 2 + "01234567"


@pytest.mark.parametrize(
    "text",
    [
        "WANDB_KEY={}", "AZURE_STORAGE_KEY={}", "AccountName=x;AccountKey={}==;Suffix", "ENCRYPTION_KEY={}", "'MYSQL_PWD': '{}'", "smtp_pass={}", "passphrase: {}", "SERVER=x;UID=sa;PWD={}",
        'body: {{\\"password\\": \\"{}\\"}}', "{{b'password': b'{}'}}", "('password', '{}')", "['train.py', '--hf-token', '{}', '--lr', '1']", 'password="two words {}',
        'password="a\\"b {}"', 'password="""a "b" {}"""', "machine api.wandb.ai login user password {}", "{{'Authorization': 'token {}'}}", "{{'X-Auth-Key': '{}'}}", "Cookie: session={}",
        "Authorization: AWS4-HMAC-SHA256 Credential=AKIA/2025, SignedHeaders=h, Signature={}", '{{"auths": {{"nvcr.io": {{"auth": "{}"}}}}}}', "token: str = '{}'", "curl -u admin:{} https://x",
        "https://{}@github.com/x.git", "postgresql://user:p@{}@db:5432/x", "mysql://user:p/{}@db/x", "redis://:{}@h:6379/0", "https://b/k?X-Amz-Signature={}", "https://acc/c?sv=2022&sig={}%3D",
        "https://hooks.slack.com/services/T00000000/B00000000/{}", "ghu_{0}{0}", "ghr_{0}{0}", "nvapi-{0}{0}", "AIzaSyD-{}12345678901234", "sk_live_{0}{0}", "xapp-1-A-1-{}", "sk-proj-{0}{0}",
        "npm_{0}{0}", "docker login -u me -p {} nvcr.io", "podman login -p{} quay.io", "mysql -h db -u root -p{} train", "mysqldump --opt -p{} train > x", "sshpass -p {} ssh n1",
        "{}\nMIIE\n-----END RSA PRIVATE KEY-----", "x\n" + ("{0}" + "A" * 46 + "\n") * 3,
    ],
)  # fmt: skip
def test_a_secret_is_hidden_in_each_form_in_which_it_is_printed(text: str) -> None:
    assert SECRET in text.format(SECRET)
    assert SECRET not in redact(text.format(SECRET))


@pytest.mark.parametrize("text", [f"wandb login {HEX}", f"wandb login --relogin {HEX}", f"wandb: login key {HEX}", f"WANDB_API_KEY {HEX}", f"dapi{HEX[:32]}"])
def test_hexadecimal_keys_are_hidden(text: str) -> None:
    assert HEX[:32] not in redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: num_tokens=8192 exceeds max_tokens=4096", "  tokenizer = AutoTokenizer.from_pretrained(args.model)", 'token_ids = batch["input_ids"].to(device)',
        "Basic training failed: basic assumptions", "pad_token_id=0 eos_token='</s>' pad_token_id=None", "KeyError: tokens: 7 is not in vocabulary", "token=self.tokens.next",
        "cache_key=layers.0.attention", "cache_key=17", "PWD=/root/work", "auth: failed", "signature: (Tensor self) -> Tensor", "sig=SIGTERM", "backward_pass: 12.5 ms", "api-7b: ok",
        "http://node7:8080/metrics?of=a@b", "tcp://10.0.0.1:29500", f"commit {HEX}", "hf_model_config_path=/m", "--max-tokens 4096 --tokenizer gpt2", "monkey=7 turkey=late", "ssh://git@github.com/x",
        "docker login -u me nvcr.io", "docker run -p 8080:80 image", "mysql -p -P 3306 train", "gcc -lmysqlclient -pthread", "npm_config_registry=https://x", f"wandb: run of commit {HEX}",
    ],
)  # fmt: skip
def test_twin_what_only_looks_alike_stays(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize(
    "repeated",
    ["a--", "-", "a", "password", "_key", "token=a.", "password=\\\"", "token='\\", "a=", "a ", " ", "://a:b", "://", "login a ", "curl -a ", "-----BEGIN ", "-----BEGIN PRIVATE KEY-----",
     "-----END PRIVATE KEY-----\n", "g" * 64 + "\n", "sk-", "eyJ", "cookie:", "authorization: ", "bearer ", "('password', ", "\\", "wandb login ", "wandb_api_key ", "docker login ", "sshpass -p", "mysql ", "mysql -", "npm_"],
)  # fmt: skip
def test_a_long_text_of_what_a_pattern_begins_with_ends(repeated: str) -> None:
    """A pattern that goes back over what it has read takes minutes for each of these."""
    text = "ValueError: " + (repeated * (100_000 // len(repeated) + 1))[:100_000]
    assert redact(text + "\npassword=hunter2").find("hunter2") < 0


def test_the_last_lines_of_a_file_are_cut_behind_the_redaction(tmp_path: Path) -> None:
    log = tmp_path / "0.log"
    key = "-----BEGIN RSA PRIVATE KEY-----\n" + "".join(f"MIIEpSECRETLINE{number}\n" for number in range(30)) + "-----END RSA PRIVATE KEY-----\n"
    log.write_text("first\n" + key + "last\n")
    assert last_lines(log, lines=5) == "first\n[redacted]\nlast"
    assert "SECRETLINE" not in last_lines(log, longest=200)


def test_a_line_whose_beginning_is_not_read_is_left_out(tmp_path: Path) -> None:
    log = tmp_path / "0.log"
    log.write_text("password=hunter2 hunter2\nlast\n")
    assert last_lines(log, longest=12) == "last"


def test_the_last_lines_of_this_process_alone(tmp_path: Path) -> None:
    log = tmp_path / "0.log"
    log.write_text("of the one before\n")
    since = log.stat().st_size
    log.write_text(log.read_text() + "".join(f"line {number}\n" for number in range(30)))
    assert last_lines(log, lines=2, since=since) == "line 28\nline 29"
    assert "before" not in last_lines(log, lines=100, since=since)
    assert last_lines(tmp_path / "none") == ""
