"""Export a network from torch and compare its output with a running server.

In an environment with torch and onnxscript:

    python docs/examples/export_onnx.py          # writes export_onnx.onnx and export_onnx.npz next to this file

Then, with Touchstone's interpreter (which has httpx and NumPy) and a running server:

    python -m backend models add docs/examples/export_onnx.onnx
    python docs/examples/export_onnx.py http://127.0.0.1:8000 cpu
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

HERE = Path(__file__).resolve().with_suffix("")
TOLERANCE = 1e-4  # relative to numbers around 1, float32 on any device


def export() -> None:
    """Write a small image network with seeded weights and a free batch size, and its output for two images."""
    import numpy as np
    import torch
    from torch import nn

    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
        nn.Softmax(dim=1),
    ).eval()
    pictures = torch.rand(2, 3, 32, 32)
    program = torch.onnx.export(
        network,
        (pictures,),
        input_names=["pictures"],
        output_names=["scores"],
        dynamic_shapes={"input": {0: torch.export.Dim("batch")}},
        opset_version=18,
        dynamo=True,
    )
    model = program.model_proto
    for part in (*model.graph.node, *model.graph.value_info, *model.graph.initializer, model.graph):
        part.ClearField("metadata_props")  # source paths of this machine
    HERE.with_suffix(".onnx").write_bytes(model.SerializeToString())
    with torch.no_grad():
        np.savez_compressed(HERE.with_suffix(".npz"), pictures=pictures.numpy(), scores=network(pictures).numpy())


def ask(server: str, device: str) -> float:
    """Send the pictures to the server and return the largest difference of the scores to torch's."""
    import httpx
    import numpy as np

    expected = np.load(HERE.with_suffix(".npz"))
    content = io.BytesIO()
    np.save(content, expected["pictures"])
    with httpx.Client(base_url=server, timeout=120) as http:
        file = http.put("/api/files/pictures.npy", content=content.getvalue()).raise_for_status().json()
        body = {"task": "onnx", "model": "export_onnx", "device": device, "inputs": {"pictures": file["id"]}}
        answer = http.post("/api/generate", json=body)
        job = answer.json()
        if answer.status_code != 200:
            sys.exit(f"{job['detail']}\n  {job['remedy']}")
        scores = http.get(job["output"]["artifacts"][0]["url"]).raise_for_status().content
    print(f"ran on {job['receipt']['used']}: {job['receipt']['placement']['evidence']}")
    return float(np.abs(np.load(io.BytesIO(scores)) - expected["scores"]).max())


if __name__ == "__main__":
    if len(sys.argv) == 1:
        export()
    else:
        difference = ask(*sys.argv[1:3])
        print(f"largest difference to torch: {difference:.2g}")
        sys.exit(difference > TOLERANCE)
