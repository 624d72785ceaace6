"""A vLLM plugin that computes a model's Gated DeltaNet layers on gdn_server.

    GDN_SERVER=127.0.0.1:50061 python -m vllm.entrypoints.openai.api_server --model DIR

vLLM loads the plugin by itself (`plugin.register`). Without a server in the environment or in `--additional-config` the
plugin changes nothing.
"""
