// Stand-in for CUDA's header of the same name: the host SIMT layer.
#pragma once

#include "library_types.h"
#include "tests/support/simt/intrinsics.h"
#include "tests/support/simt/runtime.h"
#include "tests/support/simt/types.h"
