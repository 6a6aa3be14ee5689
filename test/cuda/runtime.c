// A fake CUDA runtime, which replaces libcudart.so in plans_test.sh: the functions that cudnn-frontend calls while it
// builds plans, with the answers of an H200. cuDNN itself calls the driver (driver.c).
#include <cuda_runtime_api.h>
#include <string.h>

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* n) {
  *n = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp* properties, int device) {
  (void)device;
  memset(properties, 0, sizeof *properties);
  properties->major = 9;
  properties->multiProcessorCount = 132;
  properties->warpSize = 32;
  properties->sharedMemPerBlock = 49152;
  properties->sharedMemPerBlockOptin = 232448;
  strcpy(properties->name, "NVIDIA H200");
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, enum cudaDeviceAttr attribute, int device) {
  (void)device;
  *value = attribute == cudaDevAttrComputeCapabilityMajor ? 9 : attribute == cudaDevAttrMultiProcessorCount ? 132 : 0;
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t error) {
  (void)error;
  return "an error of the fake runtime";
}
