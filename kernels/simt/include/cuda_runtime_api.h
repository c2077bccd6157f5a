// Stand-in for CUDA's header of the same name: the part for hosts.
#pragma once

#include "kernels/simt/runtime.h"
#include "kernels/simt/types.h"
