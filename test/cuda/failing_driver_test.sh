#!/usr/bin/env bash
# With an NVIDIA driver that fails, device=auto is an error that names the cause, and device=cpu trains. Without a driver,
# device=auto is the processor. The driver is a fake one.
. test/support/check.sh
"$lockstep" gpu-info --json 2>/dev/null | grep -q 'no CUDA backend' && { echo "skipped: this build has no CUDA"; exit 77; }

cat >"$work/driver.c" <<'C'
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
int cuInit(unsigned flags) { return atoi(getenv("FAKE_CUINIT")); }
int cuDriverGetVersion(int* version) { *version = atoi(getenv("FAKE_DRIVER")); return 0; }
int any(void) { return 999; }
int cuGetProcAddress_v2(const char* name, void** function, int version, unsigned long flags, void* status) {
  *function = dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), name);
  if (!strcmp(name, "cuGetProcAddress")) *function = (void*)cuGetProcAddress_v2;
  if (!*function) *function = (void*)any;
  return 0;
}
C
gcc -w -shared -fPIC -Wl,-soname,libcuda.so.1 "$work/driver.c" -o "$work/libcuda.so.1" -ldl
plan() { # plan CUINIT VERSION DEVICE
  env FAKE_CUINIT="$1" FAKE_DRIVER="$2" LD_LIBRARY_PATH="$work:${LD_LIBRARY_PATH:-}" \
    "$lockstep" plan data.train=synthetic device="$3" >"$work/out" 2>&1
}
for driver in "802 13020 cudaErrorSystemNotReady" "999 13020 cudaErrorUnknown" "0 11040 11.4"; do
  read -r result version cause <<<"$driver"
  plan "$result" "$version" auto
  check "a driver that fails with $result: exit status 2" test $? = 2
  check "  with the cause and the remedy" grep -q "error: .*$cause.*device=cpu" "$work/out"
  check "  and device=cpu trains" plan "$result" "$version" cpu
done
check "no device: the processor" plan 100 13020 auto
finish
