// A fake libcudnn.so.9 with one handle, whose stream fake_stream() returns. It also passes as the CUDA runtime, which
// cudnn-frontend opens.
extern "C" {

static void* stream_of_handle = nullptr;

unsigned long cudnnGetVersion() { return 91900; }
const char* cudnnGetErrorString(int) { return "an error of the fake cuDNN"; }
int cudnnCreate(void** handle) {
  *handle = &stream_of_handle;
  return 0;
}
int cudnnSetStream(void*, void* stream) {
  stream_of_handle = stream;
  return 0;
}
void* fake_stream() { return stream_of_handle; }

}  // extern "C"
