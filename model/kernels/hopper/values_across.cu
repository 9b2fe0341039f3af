// Conversion of values to the layout of attention.cu in 8 bits, for GPUs of compute capability 9.0. attention.py compiles
// this file after hopper.cuh.
//
// Values are transposed to [columns, row]. Along a row are the tokens, of every 16 in the order 0 1 8 9 2 3 10 11 4 5 12 13
// 6 7 14 15. A block of threads transposes 64 tokens by 64 columns; columns and row are multiples of 64.

struct __align__(16) Turning { u8 tile[64][68]; };  // [token][column], padded by 4 bytes to avoid bank conflicts within a column

// Transposes values [tokens, columns], followed by zeros.
extern "C" __global__ void __launch_bounds__(256) across(const u8* values, u8* out, int tokens, int columns, int row) {
    __shared__ Turning shared;
    int column = blockIdx.x * 64, token = blockIdx.y * 64;
    for (int i = threadIdx.x; i < 64 * 16; i += 256) {
        int down = i / 16, along = i % 16 * 4;
        bool there = token + down < tokens;
        *(u32*)&shared.tile[down][along] = there ? *(const u32*)(values + (u64)(token + down) * columns + column + along) : 0;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 64 * 16; i += 256) {
        int down = i / 16, along = i % 16 * 4, from = along / 16 * 16 + along % 16 / 2;
        const u8 (*x)[68] = shared.tile + from;
        u32 four = x[0][down] | x[1][down] << 8 | x[8][down] << 16 | (u32)x[9][down] << 24;
        *(u32*)(out + (u64)(column + down) * row + token + along) = four;
    }
}

// Writes (x - shift) * factor to the `places` of the tokens; x is bf16 [tokens, columns] with rows `stride` apart. Eight
// numbers are read at once, and pairs of adjacent tokens are written at once.
extern "C" __global__ void __launch_bounds__(256)
put_across(const u16* x, u8* out, const long long* places, const float* shift, const float* factor, int tokens, int stride, int row) {
    __shared__ Turning shared;
    __shared__ int place[64];
    int column = blockIdx.x * 64, token = blockIdx.y * 64, count = min(64, tokens - token);
    float by = *factor;
    if (threadIdx.x < 64) place[threadIdx.x] = threadIdx.x < count ? (int)places[token + threadIdx.x] : -1;
    for (int i = threadIdx.x; i < 8 * count; i += 256) {
        int down = i / 8, along = i % 8 * 8;
        uint4 eight = *(const uint4*)(x + (u64)(token + down) * stride + column + along);  // bf16 is the upper half of fp32
        u32 two[4] = {eight.x, eight.y, eight.z, eight.w};
        #pragma unroll
        for (int j = 0; j < 4; j += 2) {
            float4 less = *(const float4*)(shift + column + along + 2 * j);
            float a = (__int_as_float(two[j] << 16) - less.x) * by, b = (__int_as_float(two[j] & 0xFFFF0000u) - less.y) * by;
            float c = (__int_as_float(two[j + 1] << 16) - less.z) * by, d = (__int_as_float(two[j + 1] & 0xFFFF0000u) - less.w) * by;
            *(u32*)&shared.tile[down][along + 2 * j] = fp8(a, b, c, d);
        }
    }
    __syncthreads();
    int first = threadIdx.x % 32 * 2, at = place[first], next = place[first + 1];  // a warp has the tokens of a column
    bool together = at % 2 == 0 && next == at + 1;
    for (int down = threadIdx.x / 32 * 4; down < 64; down += 32) {
        u32 a = *(u32*)&shared.tile[first][down], b = *(u32*)&shared.tile[first + 1][down];
        u8* to = out + (u64)(column + down) * row;
        #pragma unroll
        for (int i = 0; i < 4; i++, to += row, a >>= 8, b >>= 8) {
            if (together) *(u16*)(to + at) = (u16)(a & 0xFF | b << 8);
            else {
                if (at >= 0) to[at] = (u8)a;
                if (next >= 0) to[next] = (u8)b;
            }
        }
    }
}
