"""The text of ids that follow others, as Hugging Face tokenizers has it."""
from tokenizers.decoders import DecodeStream

REPLACEMENT = "\ufffd"


def decode_after(tokenizer, context, ids, skip):
    """What decoding all of it has beyond what it shares with decoding the context."""
    before = tokenizer.decode(context, skip_special_tokens=skip)
    whole = tokenizer.decode(context + ids, skip_special_tokens=skip)
    shared = 0
    while shared < min(len(before), len(whole)) and before[shared] == whole[shared]:
        shared += 1
    return whole[shared:]


def decode_stream(tokenizer, context, ids, skip):
    """The same from DecodeStream, which vLLM uses; None where it cannot: where a character is broken it keeps text
    back, gives the context again or fails."""
    if REPLACEMENT in tokenizer.decode(context + ids, skip_special_tokens=skip):
        return None
    if REPLACEMENT in tokenizer.decode(context, skip_special_tokens=skip):
        return None
    stream = DecodeStream(ids=list(context), skip_special_tokens=skip)
    return "".join(stream.step(tokenizer, i) or "" for i in ids)
