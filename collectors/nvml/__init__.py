"""What NVML tells of each GPU: the driver's calls and fields, NVLinks, fabric, MIG instances, Xid events. `collectors.gpu` joins them."""
