"""A kernel that writes where nothing is: the driver ends the process's context and tells Xid 31 of it. By the driver's own library, without a compiler."""

import ctypes

import torch

WILD_ADDRESS = 0xDEAD_0000_0000
PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry wild(.param .u64 address)
{
    .reg .b64 %place;
    .reg .b32 %word;
    ld.param.u64 %place, [address];
    mov.u32 %word, 7;
    st.global.u32 [%place], %word;
    ret;
}
"""


def write_wildly() -> None:
    """Launch it on the current GPU; the error comes with the next call that waits for the GPU. Raises RuntimeError if it cannot be launched."""
    torch.zeros(1, device="cuda")  # makes the context that the kernel runs in
    driver = ctypes.CDLL("libcuda.so.1")
    module, kernel, address = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64(WILD_ADDRESS)
    arguments = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(address), ctypes.c_void_p))
    for status in (
        driver.cuModuleLoadData(ctypes.byref(module), PTX),
        driver.cuModuleGetFunction(ctypes.byref(kernel), module, b"wild"),
        driver.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, None, arguments, None),
    ):
        if status:
            raise RuntimeError(f"the driver refuses the kernel: CUDA error {status}")


def spin(seconds: float) -> None:
    """Keep the current stream busy for about so long, by a kernel that counts cycles; nothing waits for it here."""
    cycles = int(seconds * 1.5e9)  # a data-centre GPU of these years runs at 1 to 2 GHz
    torch.cuda._sleep(cycles)  # private, and the way in which torch's own tests do it
