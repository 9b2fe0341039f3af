"""Which layer a LoRA's tensor changes, and with what scale."""
