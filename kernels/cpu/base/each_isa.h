// Compiles the file that LOCKSTEP_KERNELS names once for each instruction set, with vector types of its width
// (vectors.h): for x86-64 three times, in the namespaces avx512, avx2 and baseline, and for other processors once, in
// baseline, with vectors of 128 bits (NEON on aarch64). A .cpp includes this once, outside of any namespace and after
// all other headers: a header included in between would be compiled for the wrong processor. The named file has no
// include guard and puts its kernels into namespace lockstep::cpu::LOCKSTEP_ISA.
//
// Why not target_clones: GCC lowers vector types before it clones, so every clone would get SSE code.
#ifndef LOCKSTEP_KERNELS
#error "define LOCKSTEP_KERNELS before including each_isa.h"
#endif

#ifdef __x86_64__
#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma,f16c,bmi,bmi2,lzcnt,popcnt,prefer-vector-width=512")
#define LOCKSTEP_ISA avx512
#define LOCKSTEP_LANES 16
#include "kernels/cpu/base/vectors.h"
#include LOCKSTEP_KERNELS
#undef LOCKSTEP_ISA
#undef LOCKSTEP_LANES
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,bmi,bmi2,lzcnt,popcnt")
#define LOCKSTEP_ISA avx2
#define LOCKSTEP_LANES 8
#include "kernels/cpu/base/vectors.h"
#include LOCKSTEP_KERNELS
#undef LOCKSTEP_ISA
#undef LOCKSTEP_LANES
#pragma GCC pop_options
#endif

#define LOCKSTEP_ISA baseline
#define LOCKSTEP_LANES 4
#include "kernels/cpu/base/vectors.h"
#include LOCKSTEP_KERNELS
#undef LOCKSTEP_ISA
#undef LOCKSTEP_LANES
