"""What a device does beside products and memory-bound kernels: convolutions, launches, clocks, masks."""
