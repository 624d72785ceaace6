"""A Hugging Face model whose layers' heads are on two servers, against the same model with its own layers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5.17")

from conftest import MODEL  # noqa: E402
from server import running  # noqa: E402

import gdn_client.torch as gdn_torch  # noqa: E402

TIE = 1e-3  # logits this near are the same to two computers


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    folders = [tmp_path_factory.mktemp("half") for _ in range(2)]
    with (
        running(folders[0], "--model", f"m={MODEL}", "--heads", "0-2/6") as low,
        running(folders[1], "--model", f"m={MODEL}", "--heads", "3-5/6") as high,
    ):
        yield [low.target, high.target]


@pytest.mark.parametrize("options", [{}, {"num_beams": 3, "num_return_sequences": 2}])
def test_generate_gives_the_local_tokens(targets: list[str], options: dict[str, object]) -> None:
    local = transformers.AutoModelForCausalLM.from_pretrained(MODEL).eval()
    remote = transformers.AutoModelForCausalLM.from_pretrained(MODEL).eval()
    inputs = torch.randint(1, local.config.vocab_size, (2, 19), generator=torch.Generator().manual_seed(4))
    with gdn_torch.attach(remote, targets) as attachment:
        assert attachment.host.model.dims.value_heads == 6

        def generate(model: torch.nn.Module) -> torch.Tensor:
            torch.manual_seed(2)
            with torch.no_grad():
                return model.generate(
                    input_ids=inputs, **{"max_new_tokens": 24, "do_sample": False, "pad_token_id": 0, **options}
                )

        got, want = generate(remote), generate(local)
        with torch.no_grad():
            logits = [model(inputs).logits for model in (remote, local)]
    assert float((logits[0] - logits[1]).norm() / logits[1].norm()) < 1e-4
    for row in range(len(want)):
        if (differ := (got[row] != want[row]).nonzero().flatten()).numel() == 0:
            continue
        at = int(differ[0])
        with torch.no_grad():
            last = local(want[row : row + 1, :at]).logits[0, -1]
        assert abs(float(last[got[row, at]] - last[want[row, at]])) < TIE, f"row {row} differs at {at}"
