// A 3x3 convolution by Winograd's F(2x2, 3x3): a 2x2 piece of the output is made of a 4x4 patch of the image, and if patch, kernel and sums
// are lifted into another basis that takes 16 products a channel and filter instead of 36. What remains are 16 matrix products, each over
// all patches of some images; their sums are dropped back into the plain basis. The weight gradient is the same the other way round. The
// bases need only sums, differences and halves: errors are about thrice those of the plain sum. Something that is not finite spoils the
// whole 2x2 piece. Included by kernels.h.

constexpr int kDeep = LANES == 16 ? 8 : 4;  // rows of a tile of the weight gradient
static_assert(LANES % kDeep == 0 && TALL % 3 == 0, "tiles must fill vectors");

// Where the patches of a map [height, width] are.
struct Patches {
  long down, across, each, images, all;  // in a column, in a row, in an image; images at once; patches at once, in whole tiles
  Patches(long batch, long height, long width)
      : down((height + 1) / 2),
        across((width + 1) / 2),
        each(down * across),
        images(std::min(batch, (kFew + each - 1) / each)),
        all((images * each + TALL - 1) / TALL * TALL) {}
  static constexpr long kFew = 36;    // at once, at least: a matrix product is worth its start
  static constexpr long kMany = 256;  // of an image: more would not stay in the cache
};

// Whether it pays: vectors are full, a change of basis is little beside the products, and an image is not too large.
TARGET static bool winograd_fits(long height, long width, long channels, long filters) {
  return channels % LANES == 0 && filters % LANES == 0 && channels * filters >= 32 * 32 && height > 1 && width > 1 &&
         Patches(1, height, width).each <= Patches::kMany;
}

// The basis of images: 4 numbers, `step` apart, to as many.
TARGET static inline void image_basis(V* a, int step) {
  const V b = a[0] - a[2 * step], c = a[step] + a[2 * step], d = a[2 * step] - a[step], e = a[step] - a[3 * step];
  a[0] = b, a[step] = c, a[2 * step] = d, a[3 * step] = e;
}

// A 4x4 patch at `in`, [4, 4, channels] in rows of `row`, to 16 numbers a channel, `step` apart.
TARGET static void lift_patch(const float* in, long row, long channels, float* out, long step) {
  for (long c = 0; c < channels; c += LANES) {
    V a[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) a[i] = *(const V*)(in + i / 4 * row + i % 4 * channels + c);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) image_basis(a + i, 4);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) image_basis(a + 4 * i, 1);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) *(V*)(out + i * step + c) = a[i];
  }
}

// All patches of an image [high, wide, channels], which may be padded, to rows of `out`, [16, all, channels].
TARGET static void lift_image(const float* image, long wide, long channels, const Patches& p, float* out) {
  for (long y = 0; y < p.down; y++)
    for (long x = 0; x < p.across; x++, out += channels)
      lift_patch(image + (2 * y * wide + 2 * x) * channels, wide * channels, channels, out, p.all * channels);
}

// Kernels [9, n] to [16, n].
TARGET static void lift_weights(const float* w, long n, float* out) {
  for (long i = 0; i < n; i += LANES) {
    V a[4][3];
    for (int x = 0; x < 3; x++) {
      const V top = *(const V*)(w + x * n + i), middle = *(const V*)(w + (3 + x) * n + i), low = *(const V*)(w + (6 + x) * n + i);
      const V ends = (top + low) * 0.5f, half = middle * 0.5f;
      a[0][x] = top, a[1][x] = ends + half, a[2][x] = ends - half, a[3][x] = low;
    }
    for (int y = 0; y < 4; y++) {
      const V ends = (a[y][0] + a[y][2]) * 0.5f, half = a[y][1] * 0.5f;
      const V row[4] = {a[y][0], ends + half, ends - half, a[y][2]};
      for (int x = 0; x < 4; x++) *(V*)(out + (4 * y + x) * n + i) = row[x];
    }
  }
}

// And the gradient of that: [16, n] to [9, n].
TARGET static void drop_weights(const float* lifted, long n, float* dw) {
  for (long i = 0; i < n; i += LANES) {
    V a[3][4];
    for (int x = 0; x < 4; x++) {
      V u[4];
      for (int y = 0; y < 4; y++) u[y] = *(const V*)(lifted + (4 * y + x) * n + i);
      const V both = (u[1] + u[2]) * 0.5f;
      a[0][x] = u[0] + both, a[1][x] = (u[1] - u[2]) * 0.5f, a[2][x] = both + u[3];
    }
    for (int y = 0; y < 3; y++) {
      const V both = (a[y][1] + a[y][2]) * 0.5f;
      *(V*)(dw + 3 * y * n + i) = a[y][0] + both;
      *(V*)(dw + (3 * y + 1) * n + i) = (a[y][1] - a[y][2]) * 0.5f;
      *(V*)(dw + (3 * y + 2) * n + i) = both + a[y][3];
    }
  }
}

// Sums [16, all, filters] to the map [height, width, filters] of one image, with a bias if there is one.
TARGET static void drop_map(const float* sums, const Patches& p, const float* bias, float* out, long height, long width, long filters) {
  const long step = p.all * filters;
  const V zero = {};
  for (long y = 0; y < p.down; y++)
    for (long x = 0; x < p.across; x++, sums += filters) {
      float* to = out + (2 * y * width + 2 * x) * filters;
      const bool below = 2 * y + 1 < height, right = 2 * x + 1 < width;  // else the patch hangs over the edge
      for (long f = 0; f < filters; f += LANES) {
        V a[2][4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
          const float* m = sums + i * step + f;
          const V one = *(const V*)(m + 4 * step), two = *(const V*)(m + 8 * step);
          a[0][i] = *(const V*)m + one + two;
          a[1][i] = one - two - *(const V*)(m + 12 * step);
        }
        const V b = bias ? *(const V*)(bias + f) : zero;
        *(V*)(to + f) = a[0][0] + a[0][1] + a[0][2] + b;
        if (right) *(V*)(to + filters + f) = a[0][1] - a[0][2] - a[0][3] + b;
        if (below) *(V*)(to + width * filters + f) = a[1][0] + a[1][1] + a[1][2] + b;
        if (below && right) *(V*)(to + (width + 1) * filters + f) = a[1][1] - a[1][2] - a[1][3] + b;
      }
    }
}

// The gradient of that: of the map [height, width, filters] of one image to rows of `out`, [16, all, filters].
TARGET static void lift_gradient(const float* grad, const Patches& p, float* out, long height, long width, long filters) {
  const long step = p.all * filters;
  const V zero = {};
  for (long y = 0; y < p.down; y++)
    for (long x = 0; x < p.across; x++, out += filters) {
      const float* from = grad + (2 * y * width + 2 * x) * filters;
      const bool below = 2 * y + 1 < height, right = 2 * x + 1 < width;
      for (long f = 0; f < filters; f += LANES) {
        const V a = *(const V*)(from + f), b = right ? *(const V*)(from + filters + f) : zero;
        const V c = below ? *(const V*)(from + width * filters + f) : zero;
        const V d = below && right ? *(const V*)(from + (width + 1) * filters + f) : zero;
        const V left[4] = {a, a + c, a - c, -c}, other[4] = {b, b + d, b - d, -d};
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
          float* to = out + 4 * i * step + f;
          *(V*)to = left[i];
          *(V*)(to + step) = left[i] + other[i];
          *(V*)(to + 2 * step) = left[i] - other[i];
          *(V*)(to + 3 * step) = -other[i];
        }
      }
    }
}

// out [ROWS, NV vectors of `columns`] = a [ROWS, depth] b [depth, NV vectors of `columns`].
template <int NV, int ROWS>
TARGET static void product_tile(const float* a, const float* b, float* out, long depth, long columns) {
  V sum[ROWS][NV] = {};
  const float* at[ROWS / 3];
#pragma GCC unroll 32
  for (int t = 0; t < ROWS / 3; t++) at[t] = a + 3 * t * depth;
  for (long k = 0; k < depth; k++, b += columns) {
    V w[NV];
#pragma GCC unroll 2
    for (int v = 0; v < NV; v++) w[v] = *(const V*)(b + v * LANES);
#pragma GCC unroll 32
    for (int t = 0; t < ROWS / 3; t++) {
#pragma GCC unroll 3
      for (int j = 0; j < 3; j++)
#pragma GCC unroll 2
        for (int v = 0; v < NV; v++) sum[3 * t + j][v] += w[v] * at[t][j * depth];
      at[t]++;
    }
  }
#pragma GCC unroll 32
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
    for (int v = 0; v < NV; v++) *(V*)(out + r * columns + v * LANES) = sum[r][v];
}

// out [rows, columns] = a [rows, depth] b [depth, columns]; rows are whole tiles.
TARGET static void product(const float* a, const float* b, float* out, long rows, long depth, long columns) {
  for (long c = 0; c < columns; c += 2 * LANES) {
    const auto tile = columns - c > LANES ? product_tile<2, TALL> : product_tile<1, TALL>;
    for (long r = 0; r < rows; r += TALL) tile(a + r * depth, b + c, out + r * columns + c, depth, columns);
  }
}

// out [kDeep, NV vectors of `columns`] += a' b, over rows of a [rows, depth] and b [rows, columns].
template <int NV>
TARGET static void outer_tile(const float* a, const float* b, float* out, long rows, long depth, long columns) {
  V sum[kDeep][NV];
#pragma GCC unroll 32
  for (int d = 0; d < kDeep; d++)
#pragma GCC unroll 2
    for (int v = 0; v < NV; v++) sum[d][v] = *(const V*)(out + d * columns + v * LANES);
  for (long r = 0; r < rows; r++, a += depth, b += columns) {
    V w[NV];
#pragma GCC unroll 2
    for (int v = 0; v < NV; v++) w[v] = *(const V*)(b + v * LANES);
#pragma GCC unroll 32
    for (int d = 0; d < kDeep; d++)
#pragma GCC unroll 2
      for (int v = 0; v < NV; v++) sum[d][v] += w[v] * a[d];
  }
#pragma GCC unroll 32
  for (int d = 0; d < kDeep; d++)
#pragma GCC unroll 2
    for (int v = 0; v < NV; v++) *(V*)(out + d * columns + v * LANES) = sum[d][v];
}

// out [depth, columns] += a' b of a [rows, depth] and b [rows, columns].
TARGET static void outer(const float* a, const float* b, float* out, long rows, long depth, long columns) {
  for (long c = 0; c < columns; c += 2 * LANES) {
    const auto tile = columns - c > LANES ? outer_tile<2> : outer_tile<1>;
    for (long d = 0; d < depth; d += kDeep) tile(a + d, b + c, out + d * columns + c, rows, depth, columns);
  }
}

// As `forward`, for what winograd_fits.
TARGET static void winograd_forward(const float* images, const float* w, const float* bias, float* out, long batch, long height, long width,
                                    long channels, long filters, long pad, const uint8_t* unpool, uint8_t* pool) {
  const long out_height = height + 2 * pad - 2, out_width = width + 2 * pad - 2;
  const long in_size = unpool ? height / 2 * (width / 2) * channels : height * width * channels;
  const long out_size = pool ? out_height / 2 * (out_width / 2) * filters : out_height * out_width * filters;
  const Patches p(batch, out_height, out_width);
  static thread_local Room for_weights, for_image, for_unpool, for_pool, for_patches, for_sums;
  float* spread = unpool ? for_unpool.take(height * width * channels) : nullptr;
  float* whole = pool ? for_pool.take(out_height * out_width * filters) : nullptr;
  float* weights = for_weights.take(16 * channels * filters);
  lift_weights(w, channels * filters, weights);
  float* patches = for_patches.take(16 * p.all * channels);
  const long real = p.images * p.each;
  for (long k = 0; k < 16; k++) std::memset(patches + (k * p.all + real) * channels, 0, (p.all - real) * channels * sizeof(float));
  float* sums = for_sums.take(16 * p.all * filters);
  Bordered bordered(for_image, 2 * p.down + 2, 2 * p.across + 2, height, width, channels, pad);

  for (long n = 0; n < batch; n += p.images) {
    const long some = std::min(p.images, batch - n), rows = (some * p.each + TALL - 1) / TALL * TALL;
    for (long i = 0; i < some; i++) {
      const float* image = images + (n + i) * in_size;
      if (unpool) relu_pool_gradient(image, unpool + (n + i) * in_size, spread, height, width, channels);
      lift_image(bordered(unpool ? spread : image), 2 * p.across + 2, channels, p, patches + i * p.each * channels);
    }
    for (long k = 0; k < 16; k++)
      product(patches + k * p.all * channels, weights + k * channels * filters, sums + k * p.all * filters, rows, channels, filters);
    for (long i = 0; i < some; i++) {
      float* to = out + (n + i) * out_size;
      drop_map(sums + i * p.each * filters, p, bias, pool ? whole : to, out_height, out_width, filters);
      if (pool) relu_pool(whole, to, pool + (n + i) * out_size, out_height, out_width, filters);
    }
  }
}

// As `weight_gradient`, for what winograd_fits.
TARGET static void winograd_weights(const float* images, const float* grads, float* dw, float* db, long batch, long height, long width,
                                    long channels, long filters, long pad, const uint8_t* unpool) {
  const long out_height = height + 2 * pad - 2, out_width = width + 2 * pad - 2, pixels = out_height * out_width;
  const long grad_size = unpool ? out_height / 2 * (out_width / 2) * filters : pixels * filters;
  const Patches p(batch, out_height, out_width);
  static thread_local Room for_image, for_unpool, for_patches, for_grads, for_sums;
  float* spread = unpool ? for_unpool.take(pixels * filters) : nullptr;
  float* patches = for_patches.take(16 * p.all * channels);
  float* lifted = for_grads.take(16 * p.all * filters);
  float* sums = for_sums.take(16 * channels * filters);
  std::memset(sums, 0, 16 * channels * filters * sizeof(float));
  std::memset(db, 0, filters * sizeof(float));
  Bordered bordered(for_image, 2 * p.down + 2, 2 * p.across + 2, height, width, channels, pad);

  for (long n = 0; n < batch; n += p.images) {
    const long some = std::min(p.images, batch - n);
    for (long i = 0; i < some; i++) {
      lift_image(bordered(images + (n + i) * height * width * channels), 2 * p.across + 2, channels, p, patches + i * p.each * channels);
      const float* grad = grads + (n + i) * grad_size;
      if (unpool) relu_pool_gradient(grad, unpool + (n + i) * grad_size, spread, out_height, out_width, filters);
      if (unpool) grad = spread;
      lift_gradient(grad, p, lifted + i * p.each * filters, out_height, out_width, filters);
      for (long f = 0; f < filters; f += LANES) bias_tile(grad + f, pixels, filters, db + f);
    }
    for (long k = 0; k < 16; k++)
      outer(patches + k * p.all * channels, lifted + k * p.all * filters, sums + k * channels * filters, some * p.each, channels, filters);
  }
  drop_weights(sums, channels * filters, dw);
}
