// Stand-in for CUDA's header of the same name: the host SIMT layer.
#pragma once

#include "library_types.h"
#include "kernels/simt/intrinsics.h"
#include "kernels/simt/runtime.h"
#include "kernels/simt/types.h"
