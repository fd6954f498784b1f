"""What an engine loads: one connector for each kind of engine."""

SUPPORTED_VLLM = "0.32"
