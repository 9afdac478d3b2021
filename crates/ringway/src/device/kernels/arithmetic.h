// The arithmetic of reductions: one value, and a pack of sixteen bytes, at a time.
//
// One source for three compilers: CUDA C++ by NVRTC, HIP C++ by HIPRTC or clang, and plain C++17 with
// RW_HOST defined. It includes nothing. What it becomes is said on the command line:
//
//   RW_TYPE   0 i8   1 u8   2 i32   3 u32   4 i64   5 u64   6 f16   7 f32   8 f64   9 bf16
//             10 f8e4m3   11 f8e5m2
//   RW_OP     0 sum   1 prod   2 max   3 min   4 avg   5 premulsum   6 what rw_chosen says when it runs
//             (without it there is no rw_combine: such a kernel only copies)
//
// and what it gives is
//
//   Element                        a value as it lies in memory: its bits, or float or double
//   Accumulator                    the type in which values are folded
//   rw_widen, rw_narrow            Element to Accumulator, exact; and back, rounded once
//   RW_IS(op)                      whether that is the operation
//   rw_combine                     left ⊕ right
//   rw_scale(value, bits)          the product with the scalar whose bits are the low bits of `bits`
//   rw_average(sum, ranks)         the finish of an average
//   rw_pack, RW_PER_PACK           sixteen bytes of elements, the first in the low bits of word[0]
//   rw_widen_pack, rw_narrow_pack  a pack to RW_PER_PACK accumulators and back
//
// Invariant: the bits are those of the host's reductions (reduce.rs), the sign and payload of a NaN
// excepted. So nothing is fused, subnormals are kept, and every operation rounds to nearest: compile
// without --use_fast_math, and with -ffp-contract=off where RW_HOST is defined. One operand with nothing
// to combine, scale or divide is the caller's to copy, not to widen and narrow.
//
// It may be included several times, each time in another namespace and with another RW_TYPE.

#if defined(RW_HOST)
#define RW_DIALECT_HOST 1
#elif defined(__HIP__) || defined(__HIPCC__) || defined(__HIPCC_RTC__)
#define RW_DIALECT_HIP 1
#else
#define RW_DIALECT_CUDA 1
#endif

#ifndef RW_FN
#if defined(RW_DIALECT_HOST)
#define RW_FN static inline
#define RW_UNROLL _Pragma("GCC unroll 16")
#elif defined(RW_DIALECT_HIP)
#define RW_FN inline __attribute__((device, always_inline))
#define RW_UNROLL _Pragma("unroll")
#else
#define RW_FN __device__ __forceinline__
#define RW_UNROLL _Pragma("unroll")
#endif
#endif

#if defined(__clang__)
#pragma clang fp contract(off)
#endif

typedef unsigned char rw_u8;
typedef unsigned short rw_u16;
typedef unsigned int rw_u32;
typedef unsigned long long rw_u64;

#undef RW_BYTES
#undef RW_FLOAT
#undef RW_PER_PACK
#if RW_TYPE == 0 || RW_TYPE == 1 || RW_TYPE == 10 || RW_TYPE == 11
#define RW_BYTES 1
#elif RW_TYPE == 6 || RW_TYPE == 9
#define RW_BYTES 2
#elif RW_TYPE == 2 || RW_TYPE == 3 || RW_TYPE == 7
#define RW_BYTES 4
#elif RW_TYPE == 4 || RW_TYPE == 5 || RW_TYPE == 8
#define RW_BYTES 8
#else
#error "RW_TYPE is none of 0 to 11"
#endif
#if RW_TYPE >= 6
#define RW_FLOAT 1
#else
#define RW_FLOAT 0
#endif
#define RW_PER_PACK (16 / RW_BYTES)

// --- bits and values ------------------------------------------------------------------------------

RW_FN rw_u32 rw_bits(float value) {
    union { float value; rw_u32 bits; } both;
    both.value = value;
    return both.bits;
}

RW_FN float rw_float(rw_u32 bits) {
    union { rw_u32 bits; float value; } both;
    both.bits = bits;
    return both.value;
}

RW_FN rw_u64 rw_bits(double value) {
    union { double value; rw_u64 bits; } both;
    both.value = value;
    return both.bits;
}

RW_FN double rw_double(rw_u64 bits) {
    union { rw_u64 bits; double value; } both;
    both.bits = bits;
    return both.value;
}

// --- one rounding an operation --------------------------------------------------------------------

#if defined(RW_DIALECT_CUDA)
RW_FN float rw_add(float a, float b) { return __fadd_rn(a, b); }
RW_FN float rw_multiply(float a, float b) { return __fmul_rn(a, b); }
RW_FN float rw_divide(float a, float b) { return __fdiv_rn(a, b); }
RW_FN double rw_add(double a, double b) { return __dadd_rn(a, b); }
RW_FN double rw_multiply(double a, double b) { return __dmul_rn(a, b); }
RW_FN double rw_divide(double a, double b) { return __ddiv_rn(a, b); }
#else
RW_FN float rw_add(float a, float b) { return a + b; }
RW_FN float rw_multiply(float a, float b) { return a * b; }
RW_FN float rw_divide(float a, float b) { return a / b; }
RW_FN double rw_add(double a, double b) { return a + b; }
RW_FN double rw_multiply(double a, double b) { return a * b; }
RW_FN double rw_divide(double a, double b) { return a / b; }
#endif

// --- narrow floats --------------------------------------------------------------------------------

// Rounds a non-negative float, given by its bits, to one of MANTISSA mantissa bits and the exponent bias
// BIAS. The value must not be past the next one after the greatest finite.
template <rw_u32 MANTISSA, rw_u32 BIAS>
RW_FN rw_u32 rw_encode(rw_u32 bits) {
    const rw_u32 rebase = (127 - BIAS) << 23;
    // A number whose last place is the narrow type's smallest subnormal: adding it rounds there.
    const rw_u32 magic = rebase + ((23 - MANTISSA + 1) << 23);
    const rw_u32 subnormal = rw_bits(rw_add(rw_float(bits), rw_float(magic))) - magic;
    const rw_u32 odd = (bits >> (23 - MANTISSA)) & 1;
    const rw_u32 half_less = (1u << (22 - MANTISSA)) - 1;
    const rw_u32 normal = (bits - rebase + half_less + odd) >> (23 - MANTISSA);
    return bits < rebase + (1u << 23) ? subnormal : normal;
}

// The value of an IEEE half.
RW_FN float rw_half_to_float(rw_u16 half) {
#if defined(RW_DIALECT_CUDA)
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
    return value;
#elif defined(RW_DIALECT_HIP)
    union { rw_u16 bits; _Float16 value; } both;
    both.bits = half;
    return (float)both.value;
#else
    const rw_u32 rebase = (127 - 15) << 23;
    const rw_u32 magnitude = half & 0x7fffu;
    const rw_u32 rebased = (magnitude << 13) + rebase;
    const float subnormal = rw_float(rebased + (1u << 23)) - rw_float(rebase + (1u << 23));
    const rw_u32 bits = magnitude < 0x0400u    ? rw_bits(subnormal)
                        : magnitude >= 0x7c00u ? rebased + rebase
                                               : rebased;
    return rw_float(bits | (half & 0x8000u) << 16);
#endif
}

// The nearest IEEE half.
RW_FN rw_u16 rw_float_to_half(float value) {
#if defined(RW_DIALECT_CUDA)
    rw_u16 half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
    return half;
#elif defined(RW_DIALECT_HIP)
    union { _Float16 value; rw_u16 bits; } both;
    both.value = (_Float16)value;
    return both.bits;
#else
    const rw_u32 bits = rw_bits(value);
    const rw_u32 magnitude = bits & 0x7fffffffu;
    // 65536 is past the last value that rounds down to 65504: it encodes as infinity.
    const rw_u32 finite = rw_encode<10, 15>(magnitude < 0x47800000u ? magnitude : 0x47800000u);
    const rw_u32 nan = 0x7e00u | ((magnitude >> 13) & 0x03ffu);
    return (rw_u16)((magnitude > 0x7f800000u ? nan : finite) | (bits & 0x80000000u) >> 16);
#endif
}

// The nearest brain float.
RW_FN rw_u16 rw_float_to_brain(float value) {
    const rw_u32 bits = rw_bits(value);
    const rw_u32 rounded = bits + 0x7fffu + ((bits >> 16) & 1);
    const rw_u32 nan = bits | 0x00400000u;
    return (rw_u16)(((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded) >> 16);
}

// The value of an e4m3fn: as a half its bits read 1/256 of it, whose exponent bias is 8 less.
RW_FN float rw_e4m3_to_float(rw_u8 byte) {
    const rw_u32 magnitude = (byte & 0x7fu) << 7;
    const rw_u32 nan = magnitude == 0x7fu << 7 ? 0x7e00u : 0;
    const rw_u32 half = magnitude | nan | (byte & 0x80u) << 8;
    return rw_multiply(rw_half_to_float((rw_u16)half), 256.0f);
}

// The nearest e4m3fn; what is too large, and infinity, is the greatest finite value.
RW_FN rw_u8 rw_float_to_e4m3(float value) {
    const rw_u32 bits = rw_bits(value);
    const rw_u32 magnitude = bits & 0x7fffffffu;
    const rw_u32 finite = rw_encode<3, 7>(magnitude < 0x43e00000u ? magnitude : 0x43e00000u);
    return (rw_u8)((magnitude > 0x7f800000u ? 0x7fu : finite) | (bits & 0x80000000u) >> 24);
}

// The nearest e5m2; what is too large, and infinity, is the greatest finite value.
RW_FN rw_u8 rw_float_to_e5m2(float value) {
    const rw_u32 bits = rw_bits(value);
    const rw_u32 magnitude = bits & 0x7fffffffu;
    const rw_u32 finite = rw_encode<2, 15>(magnitude < 0x47600000u ? magnitude : 0x47600000u);
    return (rw_u8)((magnitude > 0x7f800000u ? 0x7eu : finite) | (bits & 0x80000000u) >> 24);
}

// --- the type -------------------------------------------------------------------------------------

#if RW_TYPE == 0
typedef rw_u8 Element;
typedef signed char Accumulator;
typedef rw_u8 rw_wrapping;
#elif RW_TYPE == 1
typedef rw_u8 Element;
typedef rw_u8 Accumulator;
typedef rw_u8 rw_wrapping;
#elif RW_TYPE == 2
typedef rw_u32 Element;
typedef int Accumulator;
typedef rw_u32 rw_wrapping;
#elif RW_TYPE == 3
typedef rw_u32 Element;
typedef rw_u32 Accumulator;
typedef rw_u32 rw_wrapping;
#elif RW_TYPE == 4
typedef rw_u64 Element;
typedef long long Accumulator;
typedef rw_u64 rw_wrapping;
#elif RW_TYPE == 5
typedef rw_u64 Element;
typedef rw_u64 Accumulator;
typedef rw_u64 rw_wrapping;
#elif RW_TYPE == 6 || RW_TYPE == 9
typedef rw_u16 Element;
typedef float Accumulator;
#elif RW_TYPE == 7
typedef float Element;
typedef float Accumulator;
#elif RW_TYPE == 8
typedef double Element;
typedef double Accumulator;
#else
typedef rw_u8 Element;
typedef float Accumulator;
#endif

RW_FN Accumulator rw_widen(Element value) {
#if RW_TYPE == 6
    return rw_half_to_float(value);
#elif RW_TYPE == 9
    return rw_float((rw_u32)value << 16);
#elif RW_TYPE == 10
    return rw_e4m3_to_float(value);
#elif RW_TYPE == 11
    return rw_half_to_float((rw_u16)(value << 8)); // the upper half of an IEEE half
#else
    return (Accumulator)value;
#endif
}

RW_FN Element rw_narrow(Accumulator value) {
#if RW_TYPE == 6
    return rw_float_to_half(value);
#elif RW_TYPE == 9
    return rw_float_to_brain(value);
#elif RW_TYPE == 10
    return rw_float_to_e4m3(value);
#elif RW_TYPE == 11
    return rw_float_to_e5m2(value);
#else
    return (Element)value;
#endif
}

// --- the operation --------------------------------------------------------------------------------

#if RW_FLOAT

RW_FN Accumulator rw_of_low_bits(rw_u64 bits) {
#if RW_TYPE == 8
    return rw_double(bits);
#else
    return rw_float((rw_u32)bits);
#endif
}

RW_FN Accumulator rw_scale(Accumulator value, rw_u64 scalar_bits) {
    return rw_multiply(value, rw_of_low_bits(scalar_bits));
}

// The sum over the number of ranks, rounded to nearest.
RW_FN Accumulator rw_average(Accumulator sum, rw_u32 ranks) {
    return rw_divide(sum, (Accumulator)ranks);
}

// The greater. A NaN wins over everything; +0 is greater than -0.
RW_FN Accumulator rw_greater(Accumulator a, Accumulator b) {
#if defined(RW_DIALECT_CUDA) && RW_TYPE != 8 && __CUDA_ARCH__ >= 800
    float greater;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(greater) : "f"(a), "f"(b));
    return greater;
#else
    // They differ in zeros of different sign only: then the positive one is right.
    const Accumulator right = a > b ? a : b;
    const Accumulator left = b > a ? b : a;
    const Accumulator ordered = rw_of_low_bits(rw_bits(left) & rw_bits(right));
    return a != a || b != b ? rw_add(a, b) : ordered;
#endif
}

// The lesser. A NaN wins over everything; -0 is less than +0.
RW_FN Accumulator rw_lesser(Accumulator a, Accumulator b) {
#if defined(RW_DIALECT_CUDA) && RW_TYPE != 8 && __CUDA_ARCH__ >= 800
    float lesser;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(lesser) : "f"(a), "f"(b));
    return lesser;
#else
    const Accumulator right = a < b ? a : b;
    const Accumulator left = b < a ? b : a;
    const Accumulator ordered = rw_of_low_bits(rw_bits(left) | rw_bits(right));
    return a != a || b != b ? rw_add(a, b) : ordered;
#endif
}

#else // integers wrap

RW_FN Accumulator rw_add(Accumulator a, Accumulator b) {
    return (Accumulator)(rw_wrapping)((rw_wrapping)a + (rw_wrapping)b);
}

RW_FN Accumulator rw_multiply(Accumulator a, Accumulator b) {
    return (Accumulator)(rw_wrapping)((rw_wrapping)a * (rw_wrapping)b);
}

RW_FN Accumulator rw_scale(Accumulator value, rw_u64 scalar_bits) {
    return rw_multiply(value, (Accumulator)(rw_wrapping)scalar_bits);
}

// The quotient, cut towards zero.
RW_FN Accumulator rw_average(Accumulator sum, rw_u32 ranks) {
#if RW_BYTES == 8
    return sum / (Accumulator)ranks;
#elif RW_TYPE % 2 == 1
    return (Accumulator)(sum / ranks);
#else
    // By magnitudes: a number of ranks past the signed range is no negative divisor.
    const bool negative = sum < 0;
    const rw_u32 magnitude = negative ? 0u - (rw_u32)sum : (rw_u32)sum;
    const rw_u32 quotient = magnitude / ranks;
    return (Accumulator)(rw_wrapping)(negative ? 0u - quotient : quotient);
#endif
}

RW_FN Accumulator rw_greater(Accumulator a, Accumulator b) { return a > b ? a : b; }
RW_FN Accumulator rw_lesser(Accumulator a, Accumulator b) { return a < b ? a : b; }

#endif

#ifdef RW_OP
#undef RW_IS
#if RW_OP < 0 || RW_OP > 6
#error "RW_OP is none of 0 to 6"
#elif RW_OP < 6
#define RW_IS(op) (RW_OP == op)
#else
// One for each block, set before anything is folded.
#if defined(RW_DIALECT_HOST)
static thread_local rw_u32 rw_chosen;
#else
static __shared__ rw_u32 rw_chosen;
#endif
#define RW_IS(op) (rw_chosen == op)
#endif

RW_FN Accumulator rw_combine(Accumulator left, Accumulator right) {
    if (RW_IS(1)) return rw_multiply(left, right);
    if (RW_IS(2)) return rw_greater(left, right);
    if (RW_IS(3)) return rw_lesser(left, right);
    return rw_add(left, right);
}
#endif

// --- packs ----------------------------------------------------------------------------------------

struct alignas(16) rw_pack {
    rw_u32 word[4];
};

// (A pack by value: reading one is then a single load.)
RW_FN void rw_widen_pack(rw_pack pack, Accumulator (&values)[RW_PER_PACK]) {
    RW_UNROLL
    for (int i = 0; i < RW_PER_PACK; i++) {
#if RW_BYTES == 8
        const rw_u64 bits = (rw_u64)pack.word[2 * i + 1] << 32 | pack.word[2 * i];
#elif RW_BYTES == 4
        const rw_u32 bits = pack.word[i];
#elif RW_BYTES == 2
        const rw_u16 bits = (rw_u16)(pack.word[i / 2] >> 16 * (i % 2));
#else
        const rw_u8 bits = (rw_u8)(pack.word[i / 4] >> 8 * (i % 4));
#endif
#if RW_TYPE == 7
        values[i] = rw_float(bits);
#elif RW_TYPE == 8
        values[i] = rw_double(bits);
#else
        values[i] = rw_widen(bits);
#endif
    }
}

#if RW_BYTES == 2
// Two elements as they lie in a word: newer GPUs round both by one instruction.
RW_FN rw_u32 rw_narrow_two(Accumulator low, Accumulator high) {
#if defined(RW_DIALECT_CUDA) && __CUDA_ARCH__ >= 800
    rw_u32 both;
#if RW_TYPE == 6
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
#else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
#endif
    return both;
#else
    return (rw_u32)rw_narrow(high) << 16 | rw_narrow(low);
#endif
}
#endif

RW_FN rw_pack rw_narrow_pack(const Accumulator (&values)[RW_PER_PACK]) {
    rw_pack pack;
    RW_UNROLL
    for (int i = 0; i < 4; i++) {
#if RW_TYPE == 7
        pack.word[i] = rw_bits(values[i]);
#elif RW_TYPE == 8
        pack.word[i] = (rw_u32)(rw_bits(values[i / 2]) >> 32 * (i % 2));
#elif RW_BYTES == 8
        pack.word[i] = (rw_u32)((rw_u64)values[i / 2] >> 32 * (i % 2));
#elif RW_BYTES == 4
        pack.word[i] = (rw_u32)values[i];
#elif RW_BYTES == 2
        pack.word[i] = rw_narrow_two(values[2 * i], values[2 * i + 1]);
#else
        pack.word[i] = (rw_u32)rw_narrow(values[4 * i]) | (rw_u32)rw_narrow(values[4 * i + 1]) << 8 |
                       (rw_u32)rw_narrow(values[4 * i + 2]) << 16 |
                       (rw_u32)rw_narrow(values[4 * i + 3]) << 24;
#endif
    }
    return pack;
}
