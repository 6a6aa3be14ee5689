// Intel AMX: tiles of 16 rows by 64 bytes, and products of bf16 tiles into fp32.
#pragma once

namespace lockstep::cpu {

/// Whether the processor has AMX for bf16 and AVX-512 for bf16, and the system lets this process use it (requested on
/// first use).
bool amx_is_usable();

}  // namespace lockstep::cpu
