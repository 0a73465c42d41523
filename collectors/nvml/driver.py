"""The NVIDIA driver through the module `pynvml`: opened, closed, and each call under its name, so that one that hangs can be named."""

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

from eagle_eye.errors import EagleEyeError
from eagle_eye.gpu_devices import text_of

_Result = TypeVar("_Result")

LOST = ("NVML_ERROR_GPU_IS_LOST", "NVML_ERROR_RESET_REQUIRED")
"""The GPU does not answer, or only after a reset."""
GONE = ("NVML_ERROR_UNINITIALIZED", "NVML_ERROR_DRIVER_NOT_LOADED")
"""The driver as a whole: it was unloaded, or never loaded."""
NOT_GIVEN = (
    "NVML_ERROR_NOT_SUPPORTED",
    "NVML_ERROR_INVALID_ARGUMENT",
    "NVML_ERROR_FUNCTION_NOT_FOUND",
    "NVML_ERROR_ARGUMENT_VERSION_MISMATCH",
    "NVML_ERROR_DEPRECATED",
    "NVML_ERROR_NO_PERMISSION",
)
"""This driver or this GPU does not have it, or not for this user, and that will not change within a second."""
REMEDIES = {
    "NVML_ERROR_LIBRARY_NOT_FOUND": "install NVIDIA's driver, or set collectors.gpu.enabled = false",
    "NVML_ERROR_DRIVER_NOT_LOADED": "load it with modprobe nvidia; dmesg says why it did not load by itself",
    "NVML_ERROR_NO_PERMISSION": "let the agent's user open /dev/nvidiactl and /dev/nvidia*",
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": "the driver was updated and the older kernel module still runs: restart the node, or unload and load the module",
    "NVML_ERROR_FUNCTION_NOT_FOUND": "the driver is too old for this nvidia-ml-py: install a newer one",
}
"""Error with which NVML refuses to begin → what to do about it."""


class NvmlUnavailable(EagleEyeError):
    """This node has no library, no driver, or one that cannot be used; the message says why and what to do."""


class NvmlDriver:
    """NVML's functions by name. Used by one thread; any other may read `doing`."""

    def __init__(self, nvml: Any = None) -> None:
        """`nvml`: the module `pynvml` or a stand-in; None imports it in `open`."""
        self.nvml = nvml
        self._inside: tuple[str, str] | None = None
        self._opened = False

    @property
    def doing(self) -> str:
        """The call that has not returned, such as "nvmlDeviceGetFieldValues of GPU 3 (GPU-…)"; '' between two calls."""
        inside = self._inside
        return "" if inside is None else " of ".join(filter(None, inside))

    def open(self) -> None:
        """Begin anew: handles and event sets of before are no longer valid. Raises NvmlUnavailable, and NVMLError for what is no known lack."""
        if self.nvml is None:
            self.nvml = _module()
        self.close()
        try:
            self.call("nvmlInit")
        except self.nvml.NVMLError as error:
            raise self.unavailable(error) from error
        self._opened = True

    def close(self) -> None:
        """Let go of all GPUs: one that we hold cannot be reset, and NVML finds one that came back only when it begins again."""
        if self._opened:
            self._opened = False
            with contextlib.suppress(self.nvml.NVMLError):  # a driver that is gone has nothing left to close
                self.call("nvmlShutdown")

    def call(self, name: str, whom: str = "", /, *arguments: Any) -> Any:
        """One of NVML's functions; `whom`: the GPU as a person knows it. Raises NVMLError."""
        self._inside = (name, whom)
        try:
            return getattr(self.nvml, name)(*arguments)
        finally:
            self._inside = None

    def call_or(self, default: Any, name: str, whom: str, /, *arguments: Any) -> Any:
        """`call`, or the default where this driver or GPU does not answer it. Raises NVMLError if the GPU or the driver is gone."""
        try:
            return self.call(name, whom, *arguments)
        except self.nvml.NVMLError as error:
            if self.ends_the_look(error):
                raise
            return default

    def run(self, name: str, whom: str, function: Callable[..., _Result], /, *arguments: Any) -> _Result:
        """A function that calls NVML's function `name` by itself."""
        self._inside = (name, whom)
        try:
            return function(*arguments)
        finally:
            self._inside = None

    def has(self, name: str) -> bool:
        """Whether the installed nvidia-ml-py knows a function or constant."""
        return getattr(self.nvml, name, None) is not None

    def is_one_of(self, error: Any, names: tuple[str, ...]) -> bool:
        """Whether an NVMLError, or the number that a field came back with, is one of these errors."""
        code = getattr(error, "value", error)
        return code in {getattr(self.nvml, name, None) for name in names}

    def ends_the_look(self, error: Any) -> bool:
        """The whole GPU is lost, or the driver gone: nothing else of it need be asked."""
        return self.is_one_of(error, LOST + GONE)

    def version(self) -> tuple[int, int]:
        """The driver's, such as (580, 126); (0, 0) where it does not say. Raises NVMLError if it is gone."""
        numbers = text_of(self.call_or("", "nvmlSystemGetDriverVersion", "")).split(".")
        try:
            return int(numbers[0]), int(numbers[1])
        except (ValueError, IndexError):
            return 0, 0

    def unavailable(self, error: Any) -> Exception:
        """NvmlUnavailable for a known lack, with its remedy; any other error as it is."""
        remedy = next((remedy for name, remedy in REMEDIES.items() if self.is_one_of(error, (name,))), "")
        return NvmlUnavailable(f"NVML says: {error}; {remedy}") if remedy else error


def _module() -> Any:
    try:
        import pynvml
    except ImportError as error:
        raise NvmlUnavailable("the module pynvml is missing (pip install 'eagle-eye[gpu]')") from error
    return pynvml
