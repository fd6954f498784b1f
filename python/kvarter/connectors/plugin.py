"""Makes the connector known to vLLM by name alone, in every process: the `vllm.general_plugins` entry point.

Imports nothing heavy, and never fails: it runs in every vLLM process where Kvarter is installed, used or not.
"""

import logging

NAME = "KvarterConnector"


def register() -> None:
    """Called by vLLM at the start of each of its processes, possibly more than once."""
    try:
        from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

        if NAME not in KVConnectorFactory._registry:
            KVConnectorFactory.register_connector(NAME, "kvarter.connectors.vllm", NAME)
    except Exception as error:
        logging.getLogger("kvarter.vllm").warning("this vLLM cannot be told about Kvarter: %s", error)
