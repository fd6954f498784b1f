"""What an engine loads: one connector for each kind of engine."""

SUPPORTED_VLLM = "0.32"
SUPPORTED_SGLANG = "0.5.23"
