"""Remote Gated DeltaNet layers in Hugging Face models.

    import gdn_client.torch

    model = AutoModelForCausalLM.from_pretrained(..)
    with gdn_client.torch.attach(model, "gpu-box:50061"):
        model.generate(..)

Needs torch, and transformers 5.17 or newer. Tested with transformers 5.17, 5.20 and 5.24.
"""

from gdn_client.torch.attach import Attachment, attach
from gdn_client.torch.host import LayerHost
from gdn_client.torch.remote_layer import RemoteGatedDeltaNet

__all__ = ["Attachment", "LayerHost", "RemoteGatedDeltaNet", "attach"]
