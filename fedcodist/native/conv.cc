// For XLA on an x86-64 processor, in float32: a 3x3 convolution with stride 1, alone or followed by ReLU and a 2x2 max-pool; its input
// gradient; its weight and bias gradient; how a batch of images is cropped, flipped and standardised; a dense layer's gradients;
// and a few random bits. One thread each and no state but scratch memory: the engine runs one block of clients a thread. The arithmetic is in kernels.h and winograd.h; here it is compiled
// for three instruction sets and bound to XLA's foreign function interface.
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
    if (floats > size_ || kExact) {
      memory_.reset(new float[floats + 16]);
      size_ = floats;
    }
    return (float*)(((uintptr_t)memory_.get() + 63) & ~(uintptr_t)63);
  }

 private:
#ifdef __SANITIZE_ADDRESS__
  static constexpr bool kExact = true;  // so that a step too far is seen
#else
  static constexpr bool kExact = false;
#endif
  std::unique_ptr<float[]> memory_;
  long size_ = 0;
};

// [rows, columns] to [columns, rows], where a row of the result is `stride` floats from the next.
void transpose(const float* from, long rows, long columns, float* to, long stride) {
  const long r4 = rows / 4 * 4, c4 = columns / 4 * 4;
  for (long r = 0; r < r4; r += 4)
    for (long c = 0; c < c4; c += 4) {
      __m128 a = _mm_loadu_ps(from + r * columns + c), b = _mm_loadu_ps(from + (r + 1) * columns + c);
      __m128 d = _mm_loadu_ps(from + (r + 2) * columns + c), e = _mm_loadu_ps(from + (r + 3) * columns + c);
      _MM_TRANSPOSE4_PS(a, b, d, e);
      _mm_storeu_ps(to + c * stride + r, a);
      _mm_storeu_ps(to + (c + 1) * stride + r, b);
      _mm_storeu_ps(to + (c + 2) * stride + r, d);
      _mm_storeu_ps(to + (c + 3) * stride + r, e);
    }
  for (long r = 0; r < rows; r++)
    for (long c = r < r4 ? c4 : 0; c < columns; c++) to[c * stride + r] = from[r * columns + c];
}

// [9, rows, columns] to [9, columns, rows], and the nine from last to first: the kernel whose convolution is the input gradient.
void turn(const float* w, long rows, long columns, float* turned) {
  for (long k = 0; k < 9; k++) transpose(w + k * rows * columns, rows, columns, turned + (8 - k) * rows * columns, rows);
}

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

namespace ffi = xla::ffi;
using In = ffi::Buffer<ffi::F32>;
using Out = ffi::Result<ffi::Buffer<ffi::F32>>;
using Bytes = ffi::Buffer<ffi::U8>;

// The sizes of a call: images [batch, height, width, channels] and, before a pool, maps [batch, high, wide, filters].
struct Sizes {
  int64_t batch, height, width, channels, filters, high, wide;
};

template <typename Buffer>
bool has_shape(const Buffer& a, std::initializer_list<int64_t> shape) {
  return std::equal(shape.begin(), shape.end(), a.dimensions().begin(), a.dimensions().end());
}

// A pooled map is never empty: of an empty one there would be no pointer to tell it by.
template <typename Buffer>
bool is_map(const Buffer& a, const Sizes& s, bool pooled) {
  if (!pooled) return has_shape(a, {s.batch, s.high, s.wide, s.filters});
  return s.high > 1 && s.wide > 1 && has_shape(a, {s.batch, s.high / 2, s.wide / 2, s.filters});
}

// Only this library's own Python calls these, with shapes that fit; a program from elsewhere gets an error and not a crash.
ffi::Error wrong() { return ffi::Error(ffi::ErrorCode::kInvalidArgument, "fedcodist native: these shapes or this instruction set"); }

// A map, or a pooled map and its winners.
bool are_maps(const In& map, const Bytes* winners, const Sizes& s) {
  return is_map(map, s, winners) && (!winners || is_map(*winners, s, true));
}

bool known(const In& x, const In& w, int32_t pad, int32_t path, Sizes* sizes) {
  if (path < kSse2 || path > best() || (pad != 0 && pad != 1)) return false;
  const auto xs = x.dimensions(), ws = w.dimensions();
  if (xs.size() != 4 || ws.size() != 4 || ws[0] != 3 || ws[1] != 3 || ws[2] != xs[3]) return false;
  *sizes = {xs[0], xs[1], xs[2], xs[3], ws[3], xs[1] + 2 * pad - 2, xs[2] + 2 * pad - 2};
  return xs[0] > 0 && xs[3] > 0 && ws[3] > 0 && sizes->high > 0 && sizes->wide > 0;
}

ffi::Error forward(const In& x, const In& w, const In& b, In& out, Bytes* winners, int32_t pad, int32_t path) {
  Sizes s;
  if (!known(x, w, pad, path, &s) || !has_shape(b, {s.filters}) || !are_maps(out, winners, s)) return wrong();
  const auto kernel = pick(path, sse2::forward, avx2::forward, avx512::forward);
  kernel(x.typed_data(), w.typed_data(), b.typed_data(), out.typed_data(), s.batch, s.height, s.width, s.channels, s.filters, pad, nullptr,
         winners ? winners->typed_data() : nullptr);
  return ffi::Error::Success();
}

ffi::Error input_gradient(const In& grad, const Bytes* winners, const In& w, In& dx, int32_t pad, int32_t path) {
  Sizes s;
  if (!known(dx, w, pad, path, &s) || !are_maps(grad, winners, s)) return wrong();
  static thread_local Room for_turned;
  float* turned = for_turned.take(9 * s.channels * s.filters);
  turn(w.typed_data(), s.channels, s.filters, turned);
  const auto kernel = pick(path, sse2::forward, avx2::forward, avx512::forward);
  kernel(grad.typed_data(), turned, nullptr, dx.typed_data(), s.batch, s.high, s.wide, s.filters, s.channels, 2 - pad,
         winners ? winners->typed_data() : nullptr, nullptr);
  return ffi::Error::Success();
}

ffi::Error weight_gradient(const In& x, const In& grad, const Bytes* winners, In& dw, In& db, int32_t pad, int32_t path) {
  Sizes s;
  if (!known(x, dw, pad, path, &s) || !are_maps(grad, winners, s) || !has_shape(db, {s.filters})) return wrong();
  const auto kernel = pick(path, sse2::weight_gradient, avx2::weight_gradient, avx512::weight_gradient);
  kernel(x.typed_data(), grad.typed_data(), dw.typed_data(), db.typed_data(), s.batch, s.height, s.width, s.channels, s.filters, pad,
         winners ? winners->typed_data() : nullptr);
  return ffi::Error::Success();
}

ffi::Error Conv(In x, In w, In b, Out out, int32_t pad, int32_t path) { return forward(x, w, b, *out, nullptr, pad, path); }

ffi::Error ConvDx(In grad, In w, Out dx, int32_t pad, int32_t path) { return input_gradient(grad, nullptr, w, *dx, pad, path); }

ffi::Error ConvDw(In x, In grad, Out dw, Out db, int32_t pad, int32_t path) {
  return weight_gradient(x, grad, nullptr, *dw, *db, pad, path);
}

ffi::Error Pool(In x, In w, In b, Out out, ffi::Result<Bytes> winners, int32_t pad, int32_t path) {
  return forward(x, w, b, *out, &*winners, pad, path);
}

ffi::Error PoolDx(In grad, Bytes winners, In w, Out dx, int32_t pad, int32_t path) {
  return input_gradient(grad, &winners, w, *dx, pad, path);
}

ffi::Error PoolDw(In x, In grad, Bytes winners, Out dw, Out db, int32_t pad, int32_t path) {
  return weight_gradient(x, grad, &winners, *dw, *db, pad, path);
}

ffi::Error See(Bytes x, ffi::Buffer<ffi::S32> draws, Out out, float floor, int32_t path) {
  const auto s = x.dimensions(), o = out->dimensions(), d = draws.dimensions();
  if (path < kSse2 || path > best() || s.size() != 4 || o.size() != 4 || o[0] != s[0] || o[3] != s[3] || o[1] != o[2] || o[1] > s[1] ||
      o[2] > s[2] || d.size() != 2 || d[0] != s[0] || d[1] != 3)
    return wrong();
  const auto kernel = pick(path, sse2::see, avx2::see, avx512::see);
  for (int64_t n = 0; n < s[0]; n++) {
    const int32_t* draw = draws.typed_data() + 3 * n;  // top, left, whether to flip
    const int64_t top = std::clamp<int64_t>(draw[0], 0, s[1] - o[1]), left = std::clamp<int64_t>(draw[1], 0, s[2] - o[2]);
    kernel(x.typed_data() + n * s[1] * s[2] * s[3], s[2], s[3], top, left, draw[2] != 0, o[1], floor,
           out->typed_data() + n * o[1] * o[2] * o[3]);
  }
  return ffi::Error::Success();
}

ffi::Error DenseGradients(In x, In w, In grad, Out dx, Out dw, int32_t path) {
  const auto xs = x.dimensions(), ws = w.dimensions();
  if (path < kSse2 || path > best() || xs.size() != 2 || ws.size() != 2 || ws[0] != xs[1] || !has_shape(grad, {xs[0], ws[1]}) ||
      !has_shape(*dx, {xs[0], xs[1]}) || !has_shape(*dw, {ws[0], ws[1]}))
    return wrong();
  const auto kernel = pick(path, sse2::dense_gradients, avx2::dense_gradients, avx512::dense_gradients);
  kernel(x.typed_data(), w.typed_data(), grad.typed_data(), dx->typed_data(), dw->typed_data(), xs[0], xs[1], ws[1]);
  return ffi::Error::Success();
}

// Threefry-2x32 with 20 rounds of the counters 0, 1, 2, ..., the two words of each result in one: as jax.random.bits draws them.
ffi::Error Bits(ffi::Buffer<ffi::U32> key, ffi::Result<ffi::Buffer<ffi::U32>> out) {
  if (!has_shape(key, {2})) return wrong();
  const uint32_t* k = key.typed_data();
  const uint32_t keys[3] = {k[0], k[1], k[0] ^ k[1] ^ 0x1BD11BDAu};
  constexpr int kTurns[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
  const int64_t count = out->element_count();
  for (int64_t i = 0; i < count; i++) {
    uint32_t a = keys[0], b = (uint32_t)i + keys[1];
    for (uint32_t five = 0; five < 5; five++) {
      for (int by : kTurns[five % 2]) {
        a += b;
        b = (b << by | b >> (32 - by)) ^ a;
      }
      a += keys[(five + 1) % 3];
      b += keys[(five + 2) % 3] + five + 1;
    }
    out->typed_data()[i] = a ^ b;
  }
  return ffi::Error::Success();
}

}  // namespace

extern "C" int32_t fedcodist_best_path() { return best(); }
extern "C" const char* fedcodist_source() { return FEDCODIST_SOURCE; }  // a digest of these files, from the build

#define CONV(name, function, bind) \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(fedcodist_##name, function, (bind).Attr<int32_t>("pad").Attr<int32_t>("path"))

CONV(conv3x3, Conv, ffi::Ffi::Bind().Arg<In>().Arg<In>().Arg<In>().Ret<In>());
CONV(conv3x3_dx, ConvDx, ffi::Ffi::Bind().Arg<In>().Arg<In>().Ret<In>());
CONV(conv3x3_dw, ConvDw, ffi::Ffi::Bind().Arg<In>().Arg<In>().Ret<In>().Ret<In>());
CONV(pool, Pool, ffi::Ffi::Bind().Arg<In>().Arg<In>().Arg<In>().Ret<In>().Ret<Bytes>());
CONV(pool_dx, PoolDx, ffi::Ffi::Bind().Arg<In>().Arg<Bytes>().Arg<In>().Ret<In>());
CONV(pool_dw, PoolDw, ffi::Ffi::Bind().Arg<In>().Arg<In>().Arg<Bytes>().Ret<In>().Ret<In>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(fedcodist_see, See,
                              ffi::Ffi::Bind()
                                  .Arg<Bytes>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<In>()
                                  .Attr<float>("floor")
                                  .Attr<int32_t>("path"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(fedcodist_dense, DenseGradients,
                              ffi::Ffi::Bind().Arg<In>().Arg<In>().Arg<In>().Ret<In>().Ret<In>().Attr<int32_t>("path"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(fedcodist_bits, Bits, ffi::Ffi::Bind().Arg<ffi::Buffer<ffi::U32>>().Ret<ffi::Buffer<ffi::U32>>());
