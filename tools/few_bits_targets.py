"""What products and attention of few bits are to reach beside 16 bits, of what bench_kernels_cuda measured (gpu_check.py)."""

BENCH = "bench_kernels_cuda"


def few_bits_targets(rows, attention, add, missing):
    """rows: by (op, shape); attention(case): the row of a case of the shape that targets are for."""

    def beside(what, pairs, least):
        wanted = f"≥ {least} × bf16's rate"
        if not pairs or not all(few and bf16 for few, bf16 in pairs):
            return missing(what, BENCH, wanted)
        times = min(bf16["us"] / few["us"] for few, bf16 in pairs)
        add(what, BENCH, times, "× bf16's rate", None, None, wanted, times >= least)

    products = [shape for op, shape in rows if op == "linear" and "lm_head" not in shape]
    for m, least in [(1, 1.0), (16, 1.0), (64, 1.0), (256, 1.0), (512, 1.3), (4096, 1.3)]:
        shapes = [shape for shape in products if f" {m}x" in shape]
        beside(f"int8 products with the rounding of their rows, M = {m}, the worst shape",
               [(rows.get(("linear_int8", shape)), rows[("linear", shape)]) for shape in shapes], least)
    for m, least in [(1, 1.5), (16, 1.5), (64, 1.0), (128, 1.0), (256, 1.0), (512, 1.0), (4096, 1.3)]:
        shapes = [shape for shape in products if f" {m}x" in shape]
        beside(f"w4a8 products with the rounding of their rows, M = {m}, the worst shape",
               [(rows.get(("linear_w4a8", shape)), rows[("linear", shape)]) for shape in shapes], least)
    for m, least in [(1, 1.0), (16, 1.0), (32, 1.0), (64, 1.0), (256, 1.0), (512, 1.3), (4096, 1.3)]:
        shapes = [shape for shape in products if f" {m}x" in shape]
        beside(f"fp8 products, with the rounding of their rows from 33 on, M = {m}, the worst shape",
               [(rows.get(("linear_fp8", shape)), rows[("linear", shape)]) for shape in shapes], least)
    for m in (1, 8, 16, 32, 64, 128, 256, 512, 4096):
        least = 2.5 if m <= 16 else 1.0
        shapes = [shape for shape in products if f" {m}x" in shape]
        beside(f"int4 products, M = {m}, the worst shape",
               [(rows.get(("linear_int4", shape)), rows[("linear", shape)]) for shape in shapes], least)
    for m in (1, 8, 16, 32, 64, 128, 256, 512, 4096):
        least = 1.4 if m <= 16 else 1.0
        shapes = [shape for shape in products if f" {m}x" in shape]
        beside(f"2:4 sparse products, M = {m}, the worst shape",
               [(rows.get(("linear_sparse24", shape)), rows[("linear", shape)]) for shape in shapes], least)
        for op, what, few in [("linear_int8_groups", "products of eight bits in groups", 1.3),
                              ("int4_ordered", "int4 products with columns in another order", 1.5)]:
            beside(f"{what}, M = {m}, the worst shape",
                   [(rows.get((op, shape)), rows[("linear", shape)]) for shape in shapes], few if m <= 16 else 1.0)
    for m in (1, 32, 256, 4096):
        shape = f"{m} rows, 8 of 128 experts"
        beside(f"experts in MXFP4, {m} rows", [(rows.get(("mix_experts_mxfp4", shape)), rows.get(("mix_experts", shape)))],
               2.0 if m <= 32 else 1.0)
    for context in (1024, 4096, 8192):
        case = f"decode 64 x {context}"
        for kv in ("int8", "fp8"):
            beside(f"paged decode attention over {kv}, 64 × {context:,}",
                   [(attention(f"{case}, {kv} KV"), attention(f"{case}, mma"))], 1.6)
