// The machine's limit in single precision: independent fused multiply-adds that never leave the registers, on N threads for S seconds.
// Prints "N-threads GFLOP/s path". Usage: fma THREADS SECONDS
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

static const long LOOPS = 200000;
static const int CHAINS = 12;  // two units times a latency of four, and some more

#if defined(__x86_64__)
__attribute__((target("avx512f"))) static float wide512(float seed) {
    __m512 v[CHAINS], a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(1e-3f);
    for (int c = 0; c < CHAINS; c++) v[c] = _mm512_set1_ps(seed + c);
    for (long i = 0; i < LOOPS; i++)
#pragma GCC unroll 12
        for (int c = 0; c < CHAINS; c++) v[c] = _mm512_fmadd_ps(v[c], a, b);
    float sum = 0;
    for (int c = 0; c < CHAINS; c++) sum += _mm512_cvtss_f32(v[c]);
    return sum;
}

__attribute__((target("avx2,fma"))) static float wide256(float seed) {
    __m256 v[CHAINS], a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(1e-3f);
    for (int c = 0; c < CHAINS; c++) v[c] = _mm256_set1_ps(seed + c);
    for (long i = 0; i < LOOPS; i++)
#pragma GCC unroll 12
        for (int c = 0; c < CHAINS; c++) v[c] = _mm256_fmadd_ps(v[c], a, b);
    float sum = 0;
    for (int c = 0; c < CHAINS; c++) sum += _mm256_cvtss_f32(v[c]);
    return sum;
}
#endif

// Any other processor: vectors of four, which every compiler knows how to spread.
typedef float four __attribute__((vector_size(16)));
static float plain(float seed) {
    four v[CHAINS], a = {0.999f, 0.999f, 0.999f, 0.999f}, b = {1e-3f, 1e-3f, 1e-3f, 1e-3f};
    for (int c = 0; c < CHAINS; c++) v[c] = a * (seed + c);
    for (long i = 0; i < LOOPS; i++)
#pragma GCC unroll 12
        for (int c = 0; c < CHAINS; c++) v[c] = v[c] * a + b;
    float sum = 0;
    for (int c = 0; c < CHAINS; c++) sum += v[c][0];
    return sum;
}

int main(int count, char** said) {
    if (count != 3) return 2;
    int threads = std::atoi(said[1]);
    double seconds = std::atof(said[2]);
    float (*run)(float) = plain;
    int lanes = 4;
    const char* path = "plain";
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f")) run = wide512, lanes = 16, path = "avx512";
    else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) run = wide256, lanes = 8, path = "avx2";
#endif
    std::atomic<long> chunks{0};
    volatile float kept = run(1.0f);  // warm
    auto start = std::chrono::steady_clock::now();
    auto passed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
    std::vector<std::thread> pool;
    for (int t = 0; t < threads; t++)
        pool.emplace_back([&, t] {
            float sum = 0;
            while (passed() < seconds) sum += run(1.0f + t), chunks++;
            kept = sum;
        });
    for (auto& thread : pool) thread.join();
    double work = 2.0 * lanes * CHAINS * LOOPS * chunks.load();
    std::printf("%d %.2f %s\n", threads, work / passed() / 1e9, path);
    return 0;
}
