"""Run under the Python that has xllamacpp and gguf; a subprocess of benchmarks.serving.

PEER_PYTHON benchmarks/serving_llama_cpp.py FILE BATCH CONTEXT    serves FILE on one thread until it is stopped
PEER_PYTHON benchmarks/serving_llama_cpp.py pack SRC DST          a copy whose layers' matrices are MXFP4
"""

from __future__ import annotations

import signal
import sys
from importlib.metadata import version


def serve(file: str, batch: int, context: int) -> None:
    """Prints its address and version, then sleeps."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = file
    params.n_ctx, params.n_parallel, params.n_gpu_layers = context * batch, batch, 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.verbosity = 0
    server = xllamacpp.Server(params)
    print(f"listening at {server.listening_address} {version('xllamacpp')}", flush=True)
    signal.pause()


def pack(source: str, target: str) -> None:
    """The embedding, which is the head too, keeps its type, as it does in our packed folder."""
    import gguf
    from gguf.quants import quantize

    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, architecture)
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key in ("general.architecture", "general.file_type"):
            continue
        inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(key, field.contents(), field.types[0], inner)
    writer.add_uint32("general.file_type", int(gguf.LlamaFileType.MOSTLY_MXFP4_MOE))
    kind = gguf.GGMLQuantizationType
    for tensor in reader.tensors:
        data, own = tensor.data, tensor.tensor_type
        if tensor.name.startswith("blk.") and own == kind.BF16:
            data, own = quantize(gguf.dequantize(data, own), kind.MXFP4), kind.MXFP4
        writer.add_tensor(tensor.name, data, raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    if sys.argv[1] == "pack":
        pack(*sys.argv[2:])
    else:
        serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
