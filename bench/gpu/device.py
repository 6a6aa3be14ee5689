"""What the driver and cuDNN say about a GPU. A process of its own, because a call about a hanging device may not return.

    device.py --describe        prints cuDNN's description of GPU 0: cudnn_frontend's DeviceProperties::serialize
    device.py --watch PCI_BUS   until a signal ends it, prints {"clock_mhz": 1755, "throttled": ["power brake"]} five times per
                                second
"""
import ctypes
import json
import os
import pathlib
import sys
import time

# As in kernels/cuda/base/nvml.cpp: without idleness, settings, and the software power limit, which is normal under full load.
REASONS = {0x8: "hardware slowdown", 0x20: "too hot (software limit)", 0x40: "too hot (hardware limit)", 0x80: "power brake"}
SM_CLOCK = 1
# Constants of cudnn_graph.h.
DEVICEPROP_DESCRIPTOR, DEVICE_ID, JSON, INT32, CHAR = 38, 2700, 2702, 23, 24


def library(name, home=None):
    places = [name] + [str(pathlib.Path(os.environ[home], lib, name)) for lib in ("lib64", "lib") if os.environ.get(home or "")]
    for place in places:
        try:
            return ctypes.CDLL(place)
        except OSError as error:
            problem = error
    sys.exit(f"{name} cannot be loaded: {problem}")


def describe():
    cudnn = library("libcudnn.so.9", "CUDNN_HOME")
    cudnn.cudnnGetErrorString.restype = ctypes.c_char_p

    def call(function, *arguments):
        status = getattr(cudnn, function)(*arguments)
        if status:
            sys.exit(f"{function}: {cudnn.cudnnGetErrorString(status).decode()}")
    device, size = ctypes.c_void_p(), ctypes.c_int64()
    call("cudnnBackendCreateDescriptor", DEVICEPROP_DESCRIPTOR, ctypes.byref(device))
    call("cudnnBackendSetAttribute", device, DEVICE_ID, INT32, ctypes.c_int64(1), ctypes.byref(ctypes.c_int32(0)))
    call("cudnnBackendFinalize", device)
    call("cudnnBackendGetAttribute", device, JSON, CHAR, ctypes.c_int64(0), ctypes.byref(size), None)
    text = ctypes.create_string_buffer(size.value)
    call("cudnnBackendGetAttribute", device, JSON, CHAR, size, ctypes.byref(size), text)
    print(text.raw[:size.value].decode())


def watch(pci_bus):
    nvml, device = library("libnvidia-ml.so.1"), ctypes.c_void_p()
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByPciBusId_v2(pci_bus.encode(), ctypes.byref(device)):
        sys.exit(f"NVML does not know the GPU {pci_bus}")
    clock, reasons = ctypes.c_uint(), ctypes.c_ulonglong()
    while True:
        if nvml.nvmlDeviceGetClockInfo(device, SM_CLOCK, ctypes.byref(clock)) or \
                nvml.nvmlDeviceGetCurrentClocksThrottleReasons(device, ctypes.byref(reasons)):
            sys.exit("NVML does not report the clock")
        print(json.dumps({"clock_mhz": clock.value, "throttled": [why for bit, why in REASONS.items() if reasons.value & bit]}),
              flush=True)
        time.sleep(0.2)


if __name__ == "__main__":
    describe() if sys.argv[1:] == ["--describe"] else watch(sys.argv[2])
