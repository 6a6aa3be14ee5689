// Intel AMX: tiles of 16 rows by 64 bytes, and products of bf16 tiles into fp32.
#pragma once

namespace lockstep::cpu {

/// The processor has it in bf16, with AVX-512 for bf16, and the system lets this process use it (asked for on first
/// use).
bool amx_is_usable();

}  // namespace lockstep::cpu
