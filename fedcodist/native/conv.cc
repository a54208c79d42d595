// For XLA on an x86-64 processor, in float32: a 3x3 convolution with stride 1, its input gradient, its weight and bias gradient, ReLU
// followed by a 2x2 max-pool with its gradient, and how a batch of images is cropped, flipped and standardised. One thread each and no state but scratch memory: the engine runs one block of clients a
// thread. The arithmetic is in kernels.h; here it is compiled for three instruction sets and bound to XLA's foreign function interface.
// The order of every sum is fixed by the shapes and the instruction set, so equal inputs give equal bits. Arrays are
// [batch, height, width, channels] and [3, 3, channels, filters], dense and row-major.

#include <xmmintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace {

// Memory of a thread that lives from call to call and only grows; cache lines begin where it begins.
class Room {
 public:
  float* take(long floats) {
    if (floats > size_) {
      memory_.reset(new float[floats + 16]);
      size_ = floats;
    }
    return (float*)(((uintptr_t)memory_.get() + 63) & ~(uintptr_t)63);
  }

 private:
  std::unique_ptr<float[]> memory_;
  long size_ = 0;
};

#define PATH sse2  // what every x86-64 processor has
#define TARGET
#define LANES 4
#define TALL 6
#include "kernels.h"

#define PATH avx2
#define TARGET __attribute__((target("avx2,fma")))
#define LANES 8
#define TALL 6
#include "kernels.h"

#define PATH avx512
#define TARGET __attribute__((target("avx512f,avx512vl,avx512dq,avx512bw,avx2,fma")))
#define LANES 16
#define TALL 12
#include "kernels.h"

enum Instructions : int32_t { kNone = 0, kSse2 = 1, kAvx2 = 2, kAvx512 = 3 };

int32_t best() {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw"))
    return kAvx512;
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? kAvx2 : kSse2;
}

template <typename F>
F pick(int32_t path, F for_sse2, F for_avx2, F for_avx512) {
  return path == kAvx512 ? for_avx512 : path == kAvx2 ? for_avx2 : for_sse2;
}

// [9, rows, columns] to [9, columns, rows], and the nine from last to first: the kernel whose convolution is the input gradient.
void turn(const float* w, long rows, long columns, float* turned) {
  for (long k = 0; k < 9; k++) {
    const float* from = w + k * rows * columns;
    float* to = turned + (8 - k) * rows * columns;
    const long r4 = rows / 4 * 4, c4 = columns / 4 * 4;
    for (long r = 0; r < r4; r += 4)
      for (long c = 0; c < c4; c += 4) {
        __m128 a = _mm_loadu_ps(from + r * columns + c), b = _mm_loadu_ps(from + (r + 1) * columns + c);
        __m128 d = _mm_loadu_ps(from + (r + 2) * columns + c), e = _mm_loadu_ps(from + (r + 3) * columns + c);
        _MM_TRANSPOSE4_PS(a, b, d, e);
        _mm_storeu_ps(to + c * rows + r, a);
        _mm_storeu_ps(to + (c + 1) * rows + r, b);
        _mm_storeu_ps(to + (c + 2) * rows + r, d);
        _mm_storeu_ps(to + (c + 3) * rows + r, e);
      }
    for (long r = 0; r < rows; r++)
      for (long c = r < r4 ? c4 : 0; c < columns; c++) to[c * rows + r] = from[r * columns + c];
  }
}

void forward(int32_t path, const float* x, const float* w, const float* b, float* out, long batch, long height, long width, long channels,
             long filters, long pad) {
  const auto kernel = pick(path, sse2::forward, avx2::forward, avx512::forward);
  kernel(x, w, b, out, batch, height, width, channels, filters, pad);
}

namespace ffi = xla::ffi;
using In = ffi::Buffer<ffi::F32>;
using Out = ffi::Result<ffi::Buffer<ffi::F32>>;

bool has_shape(const In& a, std::initializer_list<int64_t> shape) {
  return std::equal(shape.begin(), shape.end(), a.dimensions().begin(), a.dimensions().end());
}

// Only this library's own Python calls these, with shapes that fit; a program from elsewhere gets an error and not a crash.
ffi::Error wrong(const char* what) { return ffi::Error(ffi::ErrorCode::kInvalidArgument, std::string("fedcodist native: ") + what); }

bool known(const In& x, const In& w, int32_t pad, int32_t path) {
  if (path < kSse2 || path > best() || (pad != 0 && pad != 1)) return false;
  const auto xs = x.dimensions(), ws = w.dimensions();
  if (xs.size() != 4 || ws.size() != 4 || ws[0] != 3 || ws[1] != 3 || ws[2] != xs[3]) return false;
  return xs[0] > 0 && xs[3] > 0 && ws[3] > 0 && xs[1] + 2 * pad >= 3 && xs[2] + 2 * pad >= 3;
}

ffi::Error Forward(In x, In w, In b, Out out, int32_t pad, int32_t path) {
  if (!known(x, w, pad, path)) return wrong("these shapes or this instruction set");
  const auto s = x.dimensions();
  const int64_t filters = w.dimensions()[3];
  if (!has_shape(b, {filters}) || !has_shape(*out, {s[0], s[1] + 2 * pad - 2, s[2] + 2 * pad - 2, filters})) return wrong("these shapes");
  forward(path, x.typed_data(), w.typed_data(), b.typed_data(), out->typed_data(), s[0], s[1], s[2], s[3], filters, pad);
  return ffi::Error::Success();
}

ffi::Error InputGradient(In grad, In w, Out dx, int32_t pad, int32_t path) {
  if (!known(*dx, w, pad, path)) return wrong("these shapes or this instruction set");
  const auto s = dx->dimensions();
  const int64_t filters = w.dimensions()[3], height = s[1] + 2 * pad - 2, width = s[2] + 2 * pad - 2;
  if (!has_shape(grad, {s[0], height, width, filters})) return wrong("these shapes");
  static thread_local Room for_turned;
  float* turned = for_turned.take(9 * s[3] * filters);
  turn(w.typed_data(), s[3], filters, turned);
  forward(path, grad.typed_data(), turned, nullptr, dx->typed_data(), s[0], height, width, filters, s[3], 2 - pad);
  return ffi::Error::Success();
}

ffi::Error WeightGradient(In x, In grad, Out dw, Out db, int32_t pad, int32_t path) {
  if (!known(x, *dw, pad, path)) return wrong("these shapes or this instruction set");
  const auto s = x.dimensions();
  const int64_t filters = dw->dimensions()[3];
  if (!has_shape(grad, {s[0], s[1] + 2 * pad - 2, s[2] + 2 * pad - 2, filters}) || !has_shape(*db, {filters})) return wrong("these shapes");
  const auto kernel = pick(path, sse2::weight_gradient, avx2::weight_gradient, avx512::weight_gradient);
  kernel(x.typed_data(), grad.typed_data(), dw->typed_data(), db->typed_data(), s[0], s[1], s[2], s[3], filters, pad);
  return ffi::Error::Success();
}

bool pools(const In& x, const In& small, int32_t path) {
  const auto s = x.dimensions();
  return path >= kSse2 && path <= best() && s.size() == 4 && has_shape(small, {s[0], s[1] / 2, s[2] / 2, s[3]});
}

ffi::Error ReluPool(In x, Out out, int32_t path) {
  if (!pools(x, *out, path)) return wrong("these shapes or this instruction set");
  const auto s = x.dimensions();
  const auto kernel = pick(path, sse2::relu_pool, avx2::relu_pool, avx512::relu_pool);
  kernel(x.typed_data(), out->typed_data(), s[0], s[1], s[2], s[3]);
  return ffi::Error::Success();
}

ffi::Error ReluPoolGradient(In x, In grad, Out dx, int32_t path) {
  const auto s = x.dimensions();
  if (!pools(x, grad, path) || !has_shape(*dx, {s[0], s[1], s[2], s[3]})) return wrong("these shapes or this instruction set");
  const auto kernel = pick(path, sse2::relu_pool_gradient, avx2::relu_pool_gradient, avx512::relu_pool_gradient);
  kernel(x.typed_data(), grad.typed_data(), dx->typed_data(), s[0], s[1], s[2], s[3]);
  return ffi::Error::Success();
}

ffi::Error See(ffi::Buffer<ffi::U8> x, ffi::Buffer<ffi::S32> draws, Out out, float floor, int32_t path) {
  const auto s = x.dimensions(), o = out->dimensions(), d = draws.dimensions();
  if (path < kSse2 || path > best() || s.size() != 4 || o.size() != 4 || o[0] != s[0] || o[3] != s[3] || o[1] != o[2] || o[1] > s[1] ||
      o[2] > s[2] || d.size() != 2 || d[0] != s[0] || d[1] != 3)
    return wrong("these shapes or this instruction set");
  const auto kernel = pick(path, sse2::see, avx2::see, avx512::see);
  for (int64_t n = 0; n < s[0]; n++) {
    const int32_t* draw = draws.typed_data() + 3 * n;  // top, left, whether to flip
    const int64_t top = std::clamp<int64_t>(draw[0], 0, s[1] - o[1]), left = std::clamp<int64_t>(draw[1], 0, s[2] - o[2]);
    kernel(x.typed_data() + n * s[1] * s[2] * s[3], s[2], s[3], top, left, draw[2] != 0, o[1], floor,
           out->typed_data() + n * o[1] * o[2] * o[3]);
  }
  return ffi::Error::Success();
}

}  // namespace

extern "C" int32_t fedcodist_best_path() { return best(); }
extern "C" const char* fedcodist_source() { return FEDCODIST_SOURCE; }  // a digest of these files, from the build

XLA_FFI_DEFINE_HANDLER_SYMBOL(fedcodist_conv3x3, Forward,
                              ffi::Ffi::Bind().Arg<In>().Arg<In>().Arg<In>().Ret<In>().Attr<int32_t>("pad").Attr<int32_t>("path"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(fedcodist_conv3x3_dx, InputGradient,
                              ffi::Ffi::Bind().Arg<In>().Arg<In>().Ret<In>().Attr<int32_t>("pad").Attr<int32_t>("path"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(fedcodist_conv3x3_dw, WeightGradient,
                              ffi::Ffi::Bind().Arg<In>().Arg<In>().Ret<In>().Ret<In>().Attr<int32_t>("pad").Attr<int32_t>("path"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(fedcodist_relu_pool, ReluPool, ffi::Ffi::Bind().Arg<In>().Ret<In>().Attr<int32_t>("path"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(fedcodist_relu_pool_dx, ReluPoolGradient,
                              ffi::Ffi::Bind().Arg<In>().Arg<In>().Ret<In>().Attr<int32_t>("path"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(fedcodist_see, See,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Buffer<ffi::U8>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<In>()
                                  .Attr<float>("floor")
                                  .Attr<int32_t>("path"));
