import pytest

from eagle_eye import config
from eagle_eye.errors import ConfigError


def test_defaults_when_there_is_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(config, "SEARCHED", (tmp_path / "eagle-eye.toml",))
    assert config.load().server.lease_s == 2.0


def test_the_file_in_the_working_directory_is_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "eagle-eye.toml").write_text("state_dir = '/a'\n[engine]\nmode = 'recommend'\n")
    loaded = config.load(state_dir="/b")
    assert loaded.engine == {"mode": "recommend"}
    assert str(loaded.state) == "/b"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[server]\nlease_s = 'long'", "server.lease_s"),
        ("[server]\nlistn = 'x:1'", "no key 'listn' in [server] (did you mean 'listen'?)"),
        ("[servr]\nlisten = 'x:1'", "no key 'servr' outside the tables (did you mean 'server'?)"),
        ("listen = 'x:1'", "no key 'listen' outside the tables (it belongs into [server])"),
        ("[stream.kafka]\nbroker = 'x:1'", "no key 'broker' in [stream.kafka] (did you mean 'brokers'?)"),
        ("[[topology.nodes]]\nhosts = 'a'\nswich = 'b'", "no key 'swich' in [topology.nodes[0]]."),
        ("[actions]\nmode = 'auto'", "actions.mode is 'auto': [actions] holds one table for each plugin"),
        ("[stream]\npartitions = 0", "stream.partitions"),
        ("[server]\nlisten = '7467'", "server.listen"),
        ("[server]\naddresses = 'one:7467, two'", "server.addresses"),
        ("[server]\nlisten = '127.0.0.1:99999'", "the highest port is 65535"),
        ("[server]\nhttp = '127.0.0.1:99999'", "the highest port is 65535"),
        ("[server]\naddresses = 'a:7467,b:99999'", "server.addresses is 'b:99999'"),
        ("[server]\nlease_s = nan", "server.lease_s is nan"),
        ("[server]\nlease_s = 1e8", "server.lease_s is 100000000.0: Expected `float` <= 604800.0"),
        ("[stall]\npatience_s = -1.0", "stall.patience_s is -1.0: Expected `float` > 0"),
        ("nonsense = = 1", "TOML"),
    ],
)
def test_what_is_wrong_is_named_together_with_a_remedy(text, named):
    with pytest.raises(ConfigError, match=r"mine\.toml") as caught:
        config.parse(text, "mine.toml")
    assert named in str(caught.value)


def test_a_missing_file_says_how_to_make_one(tmp_path):
    with pytest.raises(ConfigError, match="config init"):
        config.load(tmp_path / "none.toml")


def test_the_digest_follows_the_content():
    assert config.parse("").digest == config.Config().digest
    assert config.parse("[engine]\nmode = 'auto'").digest != config.Config().digest


@pytest.mark.parametrize("hours", ["5e-324", "0.0009", "nan", "inf", "-1.0"])
def test_a_span_of_hours_that_is_none_is_refused_and_the_key_is_named(tmp_path, hours):
    path = tmp_path / "mine.toml"
    path.write_text(f"[checkpoints]\nstorage_keep_hours = {hours}\n")
    with pytest.raises(ConfigError, match="storage_keep_hours"):
        config.load(path)
    for given in ("0.0", "0.001", "24.0"):
        path.write_text(f"[checkpoints]\nstorage_keep_hours = {given}\n")
        assert config.load(path).checkpoints.storage_keep_hours == float(given)
