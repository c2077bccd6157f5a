# `__shared__ float tile[8][9];` gets `LLMB_SIMT_INIT_SHARED(tile);` behind it, on the same line.
s/(__shared__ [^;=[]*[ *&>])([A-Za-z_][A-Za-z0-9_]*)((\[[^]]*\])*) *;/\1\2\3; LLMB_SIMT_INIT_SHARED(\2);/
