// The arithmetic of a 3x3 convolution, alone or with ReLU and a 2x2 max-pool after it, once for each instruction set: conv.cc includes this
// file several times, each time with
//   PATH     the namespace to put it in
//   TARGET   the attribute that lets the compiler use the instruction set in a function
//   LANES    floats in a vector
//   TALL     rows of a tile of sums that is two vectors wide, 6 or 12; one vector wide it has 12, in this file
// Rows are pixels (forward) or taps (weight gradient), columns are filters. A tile's sums stay in registers over the whole inner loop:
// TALL x 2 of them, two vectors of the one operand, and the other operand is broadcast from memory.
// Images are [height, width, channels], so the taps (kx, channel) of one kernel row are 3 * channels consecutive floats of the image.

namespace PATH {

typedef float V __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t I __attribute__((vector_size(4 * LANES)));
typedef uint8_t B __attribute__((vector_size(LANES)));

constexpr long round_up(long n) { return (n + LANES - 1) / LANES * LANES; }

// Three neighbouring pixels of an output row: where their input starts, where their output goes, and how many of them exist.
struct Trio {
  long from, to;
  int real;
};

// The sums of TRIOS x 3 pixels by NV vectors of filters. `weights` are [3, taps, NV * LANES], `bias` is [NV * LANES]; with `all` every
// pixel and all columns exist. Three pixels a pointer because x86 addresses base, base + channels and base + 2 * channels alike.
template <int NV, int TRIOS>
TARGET static void forward_tile(const float* image, long row, long channels, const Trio* trios, const float* weights, const float* bias,
                                float* out, long filters, long columns, bool all) {
  V sum[3 * TRIOS][NV];
  const float* at[TRIOS];
#pragma GCC unroll 32
  for (int p = 0; p < 3 * TRIOS; p++)
#pragma GCC unroll 2
    for (int v = 0; v < NV; v++) sum[p][v] = *(const V*)(bias + v * LANES);
  for (int ky = 0; ky < 3; ky++) {
#pragma GCC unroll 32
    for (int t = 0; t < TRIOS; t++) at[t] = image + ky * row + trios[t].from;
    for (long tap = 0; tap < 3 * channels; tap++) {
      V w[NV];
#pragma GCC unroll 2
      for (int v = 0; v < NV; v++) w[v] = *(const V*)(weights + v * LANES);
      weights += NV * LANES;
#pragma GCC unroll 32
      for (int t = 0; t < TRIOS; t++) {
#pragma GCC unroll 3
        for (int j = 0; j < 3; j++)
#pragma GCC unroll 2
          for (int v = 0; v < NV; v++) sum[3 * t + j][v] += w[v] * at[t][j * channels];
        at[t]++;
      }
    }
  }
  if (all) {
#pragma GCC unroll 32
    for (int p = 0; p < 3 * TRIOS; p++)
#pragma GCC unroll 2
      for (int v = 0; v < NV; v++) *(V*)(out + (trios[p / 3].to + p % 3) * filters + v * LANES) = sum[p][v];
    return;
  }
#pragma GCC unroll 32
  for (int t = 0; t < TRIOS; t++) {
#pragma GCC unroll 3
    for (int j = 0; j < 3; j++) {
      if (j >= trios[t].real) continue;
      float* to = out + (trios[t].to + j) * filters;
      float some[NV * LANES];
#pragma GCC unroll 2
      for (int v = 0; v < NV; v++) *(V*)(some + v * LANES) = sum[3 * t + j][v];
      std::memcpy(to, some, columns * sizeof(float));
    }
  }
}

template <int NV, int TRIOS>
TARGET static void forward_tiles(const float* image, long row, long channels, const Trio* trios, long count, const float* weights,
                                 const float* bias, float* out, long filters, long columns, bool all) {
  for (long t = 0; t < count; t += TRIOS)
    forward_tile<NV, TRIOS>(image, row, channels, trios + t, weights, bias, out, filters, columns,
                            all && columns == NV * LANES && t + TRIOS <= count);
}

// The sums of RUN neighbouring pixels of a row by one vector of filters: a float that is broadcast serves its three pixels at once, where
// a tile of two vectors lets it serve two vectors. `weights` are [9, channels, LANES], of `real` pixels the first `columns` are kept.
template <int RUN>
TARGET static void run_tile(const float* image, long row, long channels, const float* weights, const float* bias, float* out, long filters,
                            long columns, long real) {
  static_assert(RUN % 3 == 0, "pixels are addressed by threes");
  V sum[RUN];
#pragma GCC unroll 32
  for (int p = 0; p < RUN; p++) sum[p] = *(const V*)bias;
  for (int ky = 0; ky < 3; ky++, image += row, weights += 3 * channels * LANES) {
    const float* at[RUN / 3 + 1];
#pragma GCC unroll 32
    for (int t = 0; t <= RUN / 3; t++) at[t] = image + 3 * t * channels;
    for (long c = 0; c < channels; c++) {
      V w[3];
#pragma GCC unroll 3
      for (int kx = 0; kx < 3; kx++) w[kx] = *(const V*)(weights + (kx * channels + c) * LANES);
#pragma GCC unroll 32
      for (int p = 0; p < RUN + 2; p++) {
        const float x = at[p / 3][p % 3 * channels];
#pragma GCC unroll 3
        for (int kx = 0; kx < 3; kx++)
          if (p >= kx && p - kx < RUN) sum[p - kx] += w[kx] * x;
      }
#pragma GCC unroll 32
      for (int t = 0; t <= RUN / 3; t++) at[t]++;
    }
  }
  if (real == RUN && columns == LANES) {
#pragma GCC unroll 32
    for (int p = 0; p < RUN; p++) *(V*)(out + p * filters) = sum[p];
    return;
  }
#pragma GCC unroll 32
  for (int p = 0; p < RUN; p++) {
    if (p >= real) continue;
    float some[LANES];
    *(V*)some = sum[p];
    std::memcpy(out + p * filters, some, columns * sizeof(float));
  }
}

// The larger of two; not a number if either is not.
TARGET static inline V larger(V a, V b) {
  const V c = a > b ? a : b;
  return a == a ? c : a;
}

// A 2x2 window at `in` of LANES channels: the ReLU of the largest of the four, and in the bits of `winners` which of them it is: above and
// below on the left (1, 2), above and below on the right (4, 8); none if it is not above zero.
TARGET static inline void pool_up(const float* in, long right, long down, float* out, uint8_t* winners) {
  const V zero = {}, a = *(const V*)in, b = *(const V*)(in + down), c = *(const V*)(in + right), d = *(const V*)(in + right + down);
  const V most = larger(larger(larger(a, b), larger(c, d)), zero);
  const I bits = (most > zero) & (((a == most) & 1) | ((b == most) & 2) | ((c == most) & 4) | ((d == most) & 8));
  const B bytes = __builtin_convertvector(bits, B);
  *(V*)out = most;
  std::memcpy(winners, &bytes, LANES);
}

// The gradient of such a window: equal values share it, first across and then down; so do the portable forms.
TARGET static inline void pool_down(const float* grad, const uint8_t* winners, long right, long down, float* out) {
  B bytes;
  std::memcpy(&bytes, winners, LANES);
  const I bits = __builtin_convertvector(bytes, I), left = bits & 3, other = bits & 12;
  const V zero = {}, g = *(const V*)grad, half = g * 0.5f, across = (left != 0) & (other != 0) ? half : g, less = across * 0.5f;
  const V l = left == 3 ? less : across, r = other == 12 ? less : across;
  *(V*)out = (bits & 1) != 0 ? l : zero;
  *(V*)(out + down) = (bits & 2) != 0 ? l : zero;
  *(V*)(out + right) = (bits & 4) != 0 ? r : zero;
  *(V*)(out + right + down) = (bits & 8) != 0 ? r : zero;
}

// ReLU and a 2x2 max-pool of one image [height, width, channels]: `out` and `winners` are [height / 2, width / 2, channels].
TARGET static void relu_pool(const float* image, float* out, uint8_t* winners, long height, long width, long channels) {
  const long right = channels, down = width * channels;
  for (long y = 0; y < height / 2; y++)
    for (long x = 0; x < width / 2; x++, out += channels, winners += channels) {
      const float* in = image + (2 * y * width + 2 * x) * channels;
      long c = 0;
      for (; c + LANES <= channels; c += LANES) pool_up(in + c, right, down, out + c, winners + c);
      if (c == channels) continue;
      float corners[4 * LANES] = {}, most[LANES];  // too few channels for a vector
      uint8_t which[LANES];
      const float* from[4] = {in, in + down, in + right, in + right + down};
      for (int i = 0; i < 4; i++) std::memcpy(corners + i * LANES, from[i] + c, (channels - c) * sizeof(float));
      pool_up(corners, 2 * LANES, LANES, most, which);
      std::memcpy(out + c, most, (channels - c) * sizeof(float));
      std::memcpy(winners + c, which, channels - c);
    }
}

// The gradient [height, width, channels] of one image from that of its pooled map.
TARGET static void relu_pool_gradient(const float* grad, const uint8_t* winners, float* out, long height, long width, long channels) {
  const long right = channels, down = width * channels;
  if (height % 2 || width % 2) std::memset(out, 0, height * width * channels * sizeof(float));  // of what is in no window
  for (long y = 0; y < height / 2; y++)
    for (long x = 0; x < width / 2; x++, grad += channels, winners += channels) {
      float* to = out + (2 * y * width + 2 * x) * channels;
      long c = 0;
      for (; c + LANES <= channels; c += LANES) pool_down(grad + c, winners + c, right, down, to + c);
      if (c == channels) continue;
      float some[LANES] = {}, corners[4 * LANES];
      uint8_t which[LANES] = {};
      std::memcpy(some, grad + c, (channels - c) * sizeof(float));
      std::memcpy(which, winners + c, channels - c);
      pool_down(some, which, 2 * LANES, LANES, corners);
      float* const back[4] = {to, to + down, to + right, to + right + down};
      for (int i = 0; i < 4; i++) std::memcpy(back[i] + c, corners + i * LANES, (channels - c) * sizeof(float));
    }
}

// Weights [9, channels, filters] to one block of columns after the other, [9 * channels, columns], the last filled up with zeros.
TARGET static void pack_weights(const float* w, long taps, long filters, float* packed) {
  for (long f = 0; f < filters; f += 2 * LANES) {
    const long columns = std::min<long>(filters - f, 2 * LANES), width = columns > LANES ? 2 * LANES : LANES;
    for (long tap = 0; tap < taps; tap++, packed += width) {
      std::memcpy(packed, w + tap * filters + f, columns * sizeof(float));
      std::memset(packed + columns, 0, (width - columns) * sizeof(float));
    }
  }
}

// Adds up a vector of filters of the gradient over pixels, in four sums so that an addition need not wait for the one before it.
TARGET static void bias_tile(const float* grad, long pixels, long stride, float* sums) {
  V sum[4] = {};
  long i = 0;
  for (; i + 4 <= pixels; i += 4, grad += 4 * stride)
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) sum[j] += *(const V*)(grad + j * stride);
  for (; i < pixels; i++, grad += stride) sum[0] += *(const V*)grad;
  *(V*)sums += (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// Copies of images [height, width, channels], one after the other, in a place of [high, wide, channels] that is zero around them.
class Bordered {
 public:
  Bordered(Room& room, long high, long wide, long height, long width, long channels, long pad)
      : memory_(room.take(high * wide * channels)),
        height_(height),
        line_(width * channels),
        row_(wide * channels),
        start_(pad * (row_ + channels)) {
    std::memset(memory_, 0, high * row_ * sizeof(float));
  }
  const float* operator()(const float* image) {
    for (long y = 0; y < height_; y++) std::memcpy(memory_ + start_ + y * row_, image + y * line_, line_ * sizeof(float));
    return memory_;
  }

 private:
  float* memory_;
  long height_, line_, row_, start_;
};

#include "winograd.h"

// out [batch, height + 2 pad - 2, width + 2 pad - 2, filters] from images [batch, height, width, channels], weights
// [3, 3, channels, filters] and perhaps a bias [filters]. Image by image, so that a max-pool on either side finds it in the cache: with
// `pool` out is the pooled map, and its `winners`; with `unpool` images are the gradients of pooled maps with this `winners`.
TARGET static void forward(const float* images, const float* w, const float* bias, float* out, long batch, long height, long width,
                           long channels, long filters, long pad, const uint8_t* unpool, uint8_t* pool) {
  const long out_height = height + 2 * pad - 2, out_width = width + 2 * pad - 2;
  if (winograd_fits(out_height, out_width, channels, filters))
    return winograd_forward(images, w, bias, out, batch, height, width, channels, filters, pad, unpool, pool);
  const long in_size = unpool ? height / 2 * (width / 2) * channels : height * width * channels;
  const long out_size = pool ? out_height / 2 * (out_width / 2) * filters : out_height * out_width * filters;
  constexpr long run = 12;
  const long narrow = (filters - 1) % (2 * LANES) + 1, runs = (out_width + run - 1) / run;
  const bool in_runs = narrow <= LANES && 5 * out_width >= 4 * run * runs;  // of the last filters, where rows are nearly whole runs
  const long in_row = (out_width + 2) / 3, count = out_height * in_row;
  const long wide = (in_runs ? run * runs : 3 * in_row) + 2, high = out_height + 2, row = wide * channels, taps = 9 * channels;
  static thread_local Room for_weights, for_bias, for_image, for_unpool, for_pool;
  static thread_local std::vector<Trio> trios;
  float* spread = unpool ? for_unpool.take(height * width * channels) : nullptr;
  float* whole = pool ? for_pool.take(out_height * out_width * filters) : nullptr;

  float* packed = for_weights.take(taps * round_up(filters));
  pack_weights(w, taps, filters, packed);
  float* biases = for_bias.take(round_up(filters));
  std::memset(biases, 0, round_up(filters) * sizeof(float));
  if (bias) std::memcpy(biases, bias, filters * sizeof(float));

  trios.resize(count + 4);
  Trio* next = trios.data();
  for (long y = 0; y < out_height; y++)
    for (long x = 0; x < out_width; x += 3) *next++ = {y * row + x * channels, y * out_width + x, (int)std::min<long>(3, out_width - x)};
  for (int i = 0; i < 4; i++) *next++ = {0, 0, 0};  // fill up the last tile with pixels that nobody keeps

  // A copy with a border of zeros, and with as many columns as whole trios read: so the inner loop tests nothing.
  const bool copy = pad > 0 || wide != width, all = out_width % 3 == 0;
  Bordered bordered(for_image, copy ? high : 0, wide, height, width, channels, pad);
  for (long n = 0; n < batch; n++) {
    const float* image = images + n * in_size;
    if (unpool) {
      relu_pool_gradient(image, unpool + n * in_size, spread, height, width, channels);
      image = spread;
    }
    if (copy) image = bordered(image);
    float* to = pool ? whole : out + n * out_size;
    const float* weights = packed;
    for (long f = 0; f < filters; f += 2 * LANES) {
      const long columns = std::min<long>(filters - f, 2 * LANES);
      if (columns > LANES) {
        forward_tiles<2, TALL / 3>(image, row, channels, trios.data(), count, weights, biases + f, to + f, filters, columns, all);
        weights += taps * 2 * LANES;
      } else if (in_runs) {
        for (long y = 0; y < out_height; y++)
          for (long x = 0; x < out_width; x += run)
            run_tile<run>(image + y * row + x * channels, row, channels, weights, biases + f, to + (y * out_width + x) * filters + f,
                          filters, columns, std::min(run, out_width - x));
      } else {
        forward_tiles<1, 4>(image, row, channels, trios.data(), count, weights, biases + f, to + f, filters, columns, all);
      }
    }
    if (pool) relu_pool(whole, out + n * out_size, pool + n * out_size, out_height, out_width, filters);
  }
}

// Adds to sums [TAPS, stride] the outer products of TAPS neighbouring taps and NV vectors of the gradient, over all pixels of some images.
template <int NV, int TAPS>
TARGET static void weight_tile(const float* image, long image_step, long row, const float* grad, long images, long height, long width,
                               long channels, long stride, float* sums) {
  V sum[TAPS][NV] = {};
  for (long n = 0; n < images; n++, image += image_step) {
    for (long y = 0; y < height; y++) {
      const float* x = image + y * row;
      for (long i = 0; i < width; i++, x += channels, grad += stride) {
        V g[NV];
#pragma GCC unroll 2
        for (int v = 0; v < NV; v++) g[v] = *(const V*)(grad + v * LANES);
#pragma GCC unroll 32
        for (int t = 0; t < TAPS; t++)
#pragma GCC unroll 2
          for (int v = 0; v < NV; v++) sum[t][v] += g[v] * x[t];
      }
    }
  }
  // From zero in every call and added here: with many pixels that rounds less than one long sum.
#pragma GCC unroll 32
  for (int t = 0; t < TAPS; t++)
#pragma GCC unroll 2
    for (int v = 0; v < NV; v++) *(V*)(sums + t * stride + v * LANES) += sum[t][v];
}

// All taps of one or two vectors of filters: `sums` is [9 * channels, stride].
template <int NV>
TARGET static void weight_tiles(const float* image, long image_step, long row, const float* grad, long images, long height, long width,
                                long channels, long stride, float* sums) {
  constexpr int tall = NV == 2 ? TALL : 12;
  for (long ky = 0; ky < 3; ky++, image += row) {
    for (long tap = 0; tap < 3 * channels; tap += tall) {
      const long left = 3 * channels - tap;  // a multiple of 3
      const auto tile = left >= tall ? weight_tile<NV, tall>
                        : left == 9  ? weight_tile<NV, 9>
                        : left == 6  ? weight_tile<NV, 6>
                                     : weight_tile<NV, 3>;
      tile(image + tap, image_step, row, grad, images, height, width, channels, stride, sums + (ky * 3 * channels + tap) * stride);
    }
  }
}

// dw [3, 3, channels, filters] and db [filters], from images [batch, height, width, channels] and the gradient
// [batch, height + 2 pad - 2, width + 2 pad - 2, filters] of the output; with `unpool` from the gradient of its pooled map.
TARGET static void weight_gradient(const float* images, const float* grads, float* dw, float* db, long batch, long height, long width,
                                   long channels, long filters, long pad, const uint8_t* unpool) {
  const long out_height = height + 2 * pad - 2, out_width = width + 2 * pad - 2, pixels = out_height * out_width;
  if (winograd_fits(out_height, out_width, channels, filters))
    return winograd_weights(images, grads, dw, db, batch, height, width, channels, filters, pad, unpool);
  const long high = height + 2 * pad, wide = width + 2 * pad, row = wide * channels, stride = round_up(filters);
  const long block = std::min(batch, std::max(1L, 256 / pixels));  // images at once: enough pixels that a tile's start and end cost little
  const long grad_size = unpool ? out_height / 2 * (out_width / 2) * filters : pixels * filters;
  static thread_local Room for_images, for_unpool, for_grads, for_sums, for_bias;
  float* spread = unpool ? for_unpool.take(block * pixels * filters) : nullptr;

  const bool copy = pad > 0, widen = stride != filters;  // zeros around the images, and after the filters
  float* padded = copy ? for_images.take(block * high * row) : nullptr;
  if (copy) std::memset(padded, 0, block * high * row * sizeof(float));
  float* widened = widen ? for_grads.take(block * pixels * stride) : nullptr;
  if (widen) std::memset(widened, 0, block * pixels * stride * sizeof(float));
  float* sums = widen ? for_sums.take(9 * channels * stride) : dw;
  std::memset(sums, 0, 9 * channels * stride * sizeof(float));
  float* bias = widen ? for_bias.take(stride) : db;
  std::memset(bias, 0, stride * sizeof(float));

  for (long n = 0; n < batch; n += block) {
    const long some = std::min(block, batch - n);
    const float* image = images + n * height * width * channels;
    const float* grad = grads + n * grad_size;
    if (unpool) {
      for (long i = 0; i < some; i++)
        relu_pool_gradient(grad + i * grad_size, unpool + (n + i) * grad_size, spread + i * pixels * filters, out_height, out_width,
                           filters);
      grad = spread;
    }
    if (copy) {
      for (long i = 0; i < some; i++)
        for (long y = 0; y < height; y++)
          std::memcpy(padded + (i * high + y + pad) * row + pad * channels, image + (i * height + y) * width * channels,
                      width * channels * sizeof(float));
      image = padded;
    }
    if (widen) {
      for (long i = 0; i < some * pixels; i++) std::memcpy(widened + i * stride, grad + i * filters, filters * sizeof(float));
      grad = widened;
    }
    for (long f = 0; f < stride; f += 2 * LANES) {
      const auto tiles = stride - f > LANES ? weight_tiles<2> : weight_tiles<1>;
      tiles(image, high * row, row, grad + f, some, out_height, out_width, channels, stride, sums + f);
    }
    for (long f = 0; f < stride; f += LANES) bias_tile(grad + f, some * pixels, stride, bias + f);
  }
  if (widen) {
    for (long tap = 0; tap < 9 * channels; tap++) std::memcpy(dw + tap * filters, sums + tap * stride, filters * sizeof(float));
    std::memcpy(db, bias, filters * sizeof(float));
  }
}

// One image as a model sees it: the size x size crop at (top, left), backwards in x if `flip`, with mean 0 and the standard deviation 1,
// which is floored. `in` is [height, width, channels] bytes and out [size, size, channels].
TARGET static void see(const uint8_t* in, long width, long channels, long top, long left, bool flip, long size, float floor, float* out) {
  const long row = size * channels, all = size * row;
  int64_t total = 0;
  for (long y = 0; y < size; y++) {
    const uint8_t* from = in + ((top + y) * width + left) * channels;
    float* to = out + y * row;
    int32_t sum = 0;
    for (long i = 0; i < row; i++) sum += from[i];
    total += sum;
    if (flip) {
      for (long x = 0; x < size; x++)
        for (long c = 0; c < channels; c++) to[(size - 1 - x) * channels + c] = from[x * channels + c];
    } else {
      for (long i = 0; i < row; i++) to[i] = from[i];
    }
  }
  const float mean = (double)total / all;
  V squares[4] = {};
  float rest = 0;
  long i = 0;
  for (; i + 4 * LANES <= all; i += 4 * LANES)
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
      V* at = (V*)(out + i + j * LANES);
      const V centred = *at - mean;
      *at = centred;
      squares[j] += centred * centred;
    }
  for (; i < all; i++) {
    out[i] -= mean;
    rest += out[i] * out[i];
  }
  const V square = (squares[0] + squares[1]) + (squares[2] + squares[3]);
  for (int lane = 0; lane < LANES; lane++) rest += square[lane];
  const float scale = 1 / std::max(std::sqrt(rest / all), floor);
  for (i = 0; i < all; i++) out[i] *= scale;
}

// ROWS rows of a dense layer's input gradient, for one vector of its inputs: `grad` is [outputs, ROWS] and `turned` [outputs, LANES].
template <int ROWS>
TARGET static void dense_tile(const float* grad, const float* turned, long outputs, float* dx, long inputs, long columns) {
  V sum[ROWS] = {};
  for (long o = 0; o < outputs; o++) {
    const V w = *(const V*)(turned + o * LANES);
#pragma GCC unroll 32
    for (int r = 0; r < ROWS; r++) sum[r] += w * grad[o * ROWS + r];
  }
#pragma GCC unroll 32
  for (int r = 0; r < ROWS; r++) {
    if (columns == LANES)
      *(V*)(dx + r * inputs) = sum[r];
    else
      std::memcpy(dx + r * inputs, &sum[r], columns * sizeof(float));
  }
}

// The weight gradient of INPUTS of a dense layer's inputs, for NV vectors of its outputs: `x` is [rows, inputs] from the first of these
// inputs on, `grad` [rows, stride] from the first of these outputs on.
template <int INPUTS, int NV>
TARGET static void dense_weight_tile(const float* x, long inputs, const float* grad, long stride, long rows, float* dw, long outputs,
                                     long columns) {
  V sum[INPUTS][NV] = {};
  for (long r = 0; r < rows; r++) {
    V g[NV];
#pragma GCC unroll 4
    for (int v = 0; v < NV; v++) g[v] = *(const V*)(grad + r * stride + v * LANES);
#pragma GCC unroll 4
    for (int i = 0; i < INPUTS; i++)
#pragma GCC unroll 4
      for (int v = 0; v < NV; v++) sum[i][v] += g[v] * x[r * inputs + i];
  }
#pragma GCC unroll 4
  for (int i = 0; i < INPUTS; i++)
    if (columns == NV * LANES) {
#pragma GCC unroll 4
      for (int v = 0; v < NV; v++) *(V*)(dw + i * outputs + v * LANES) = sum[i][v];
    } else {
      std::memcpy(dw + i * outputs, sum[i], columns * sizeof(float));
    }
}

// The gradients of a dense layer x [rows, inputs] w [inputs, outputs], given that of its output: dx = grad w^T and dw = x^T grad, a vector
// of inputs after the other, so that their weights are read once. These are turned where they are needed and stay in the nearest cache,
// as the output's gradient does.
TARGET static void dense_gradients(const float* x, const float* w, const float* grad, float* dx, float* dw, long rows, long inputs,
                                   long outputs) {
  constexpr long kTall = LANES == 16 ? 20 : 10, kWide = LANES == 16 ? 4 : 2;
  const long stride = round_up(outputs);
  static thread_local Room for_columns, for_turned, for_grad;
  float* columns = for_columns.take(rows * outputs);
  float* turned = for_turned.take(outputs * LANES);
  if (stride != outputs) {
    float* widened = for_grad.take(rows * stride);
    std::fill(widened, widened + rows * stride, 0.f);
    for (long r = 0; r < rows; r++) std::memcpy(widened + r * stride, grad + r * outputs, outputs * sizeof(float));
    grad = widened;
  }
  const auto height = [&](long r) { return rows - r >= kTall ? kTall : rows - r >= 4 ? 4L : 1L; };
  for (long r = 0, n; r < rows; r += n) {
    n = height(r);
    for (long o = 0; o < outputs; o++)
      for (long k = 0; k < n; k++) columns[r * outputs + o * n + k] = grad[(r + k) * stride + o];
  }
  for (long i = 0; i < inputs; i += LANES) {
    const long some = std::min<long>(LANES, inputs - i);
    if (some < LANES) std::fill(turned, turned + outputs * LANES, 0.f);
    transpose(w + i * outputs, some, outputs, turned, LANES);
    for (long r = 0, n; r < rows; r += n) {
      n = height(r);
      const auto tile = n == kTall ? dense_tile<kTall> : n == 4 ? dense_tile<4> : dense_tile<1>;
      tile(columns + r * outputs, turned, outputs, dx + r * inputs + i, inputs, some);
    }
    for (long o = 0, n; o < stride; o += n * LANES) {
      n = stride - o >= kWide * LANES ? kWide : 1;
      const long real = std::min(n * LANES, outputs - o);
      const auto four = n == 1 ? dense_weight_tile<4, 1> : dense_weight_tile<4, kWide>;
      const auto one = n == 1 ? dense_weight_tile<1, 1> : dense_weight_tile<1, kWide>;
      for (long j = i, m; j < i + some; j += m) {
        m = i + some - j >= 4 ? 4 : 1;
        (m == 4 ? four : one)(x + j, inputs, grad + o, stride, rows, dw + j * outputs + o, outputs, real);
      }
    }
  }
}

}  // namespace PATH

#undef PATH
#undef TARGET
#undef LANES
#undef TALL
