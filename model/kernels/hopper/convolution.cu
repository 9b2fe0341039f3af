// A convolution of 3 x 3 pixels of three frames in fp16, for GPUs of compute capability 9.0. Images have the layout of
// convolution.py: [rows, channels], with a pixel's neighbour a fixed number of rows away.
//
// convolution.py inserts COLUMNS and the products, and compiles this file after hopper.cuh. A block of threads, one on each
// multiprocessor (SM), processes one tile after the other: PIXELS rows by COLUMNS output channels. The first thread of its
// first warpgroup makes the tensor memory accelerator (TMA) load a ring of STAGES: CHANNELS of a line of pixels of a frame,
// and the weights of the three neighbours on that line. Three more warpgroups process a third of the pixels each. A line is
// loaded once for the three neighbours, which are the same rows in shared memory, one row apart.

@PRODUCTS@
constexpr int WARPGROUP = 128, CONVOLVING = 3, ROWS = 64, TILES = 2, PIXELS = CONVOLVING * TILES * ROWS;
constexpr int CHANNELS = 32, ROW = 2 * CHANNELS, STEP = 32, STEPS = ROW / STEP, STAGES = 5;  // ROW, STEP: bytes
constexpr int LINE = 400, LOADED = LINE / 2;  // rows: PIXELS and one on each side, in two loads of a multiple of 8
constexpr int LINE_BYTES = LINE * ROW, WEIGHT_BYTES = COLUMNS * ROW, STAGE_BYTES = LINE_BYTES + 3 * WEIGHT_BYTES;

// x: a pool of images; the three `slots` are read, the oldest first. weights: by CHANNELS, output channels and neighbours.
// The sums plus bias and `added` are written to out, fp16 [rows, out_channels], with zeros next to the image; `width`
// includes its column of zeros.
extern "C" __global__ void __launch_bounds__(WARPGROUP * (CONVOLVING + 1), 1)
convolve(const __grid_constant__ Map x, const __grid_constant__ Map weights, u16* out, const u16* bias, const u16* added,
         const int* slots, int height, int width, int channels, int out_channels) {
    extern __shared__ u8 unaligned[];
    u32 stages = ((u32)__cvta_generic_to_shared(unaligned) + 1023) & ~1023u, full = stages + STAGES * STAGE_BYTES;
    u32 empty = full + 8 * STAGES;
    int rows = (height + 1) * width, parts = channels / CHANNELS, across = out_channels / COLUMNS;
    int tiles = (rows + PIXELS - 1) / PIXELS * across, steps = 9 * parts;
    if (threadIdx.x == 0) {
        for (int i = 0; i < 8 * STAGES; i += 8) init(full + i, 1), init(empty + i, CONVOLVING);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    u32 done = 0;  // stages so far

    if (threadIdx.x < WARPGROUP) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
        int first = slots[0] * rows, second = slots[1] * rows, third = slots[2] * rows;
        for (int tile = blockIdx.x; threadIdx.x == 0 && tile < tiles; tile += gridDim.x) {
            int row = tile / across * PIXELS - 1, column = tile % across * COLUMNS;
            #pragma unroll 1
            for (int step = 0; step < steps; step++, done++) {
                int frame = step / (3 * parts), part = step / 3 % parts, line = step % 3;
                int from = (frame == 0 ? first : frame == 1 ? second : third) + row + (line - 1) * width;
                u32 stage = done % STAGES, at = stages + stage * STAGE_BYTES, here = full + 8 * stage;
                wait_for(empty + 8 * stage, done / STAGES & 1 ^ 1);  // the phase before the first counts as complete
                announce(here, STAGE_BYTES);
                load(at, &x, part * ROW, from, here);
                load(at + LOADED * ROW, &x, part * ROW, from + LOADED, here);
                load(at + LINE_BYTES, &weights, (frame * channels + part * CHANNELS) * 2, column, 3 * line, here);
            }
        }
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 160;");
    int group = __shfl_sync(~0u, threadIdx.x / WARPGROUP, 0) - 1;  // tells the compiler that it is uniform in a warp
    bool first_thread = threadIdx.x % WARPGROUP == 0;
    float sums[TILES][COLUMNS / 2];

    auto multiply = [&]() {
        u32 at = stages + done % STAGES * STAGE_BYTES;
        u64 pixels = matrix(at + group * TILES * ROWS * ROW, 8 * ROW, 2), weight = matrix(at + LINE_BYTES, 8 * ROW, 2);
        wait_for(full + 8 * (done % STAGES), done / STAGES & 1);
        begin_products();
        #pragma unroll
        for (int i = 0; i < 3 * STEPS; i++) {
            int neighbour = i / STEPS, in_row = i % STEPS * STEP;
            #pragma unroll
            for (int tile = 0; tile < TILES; tile++)
                add_products(sums[tile], pixels + ((neighbour + tile * ROWS) * ROW + in_row) / 16,
                             weight + (neighbour * WEIGHT_BYTES + in_row) / 16);
        }
        end_products();
    };

    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        #pragma unroll
        for (int i = 0; i < TILES * COLUMNS / 2; i++) sums[i / (COLUMNS / 2)][i % (COLUMNS / 2)] = 0.f;
        multiply();
        done++;
        #pragma unroll 1
        for (int step = 1; step < steps; step++, done++) {
            multiply();
            wait_for_products<1>();
            if (first_thread) arrive(empty + 8 * ((done - 1) % STAGES));
        }
        wait_for_products<0>();
        if (first_thread) arrive(empty + 8 * ((done - 1) % STAGES));
        #pragma unroll
        for (int i = 0; i < TILES; i++) made(sums[i]);

        int column = tile % across * COLUMNS, lane = threadIdx.x % 4;
        #pragma unroll
        for (int i = 0; i < 2 * TILES; i++) {
            int in_tile = (group * TILES + i / 2) * ROWS + threadIdx.x % WARPGROUP / 32 * 16 + threadIdx.x % 32 / 4 + i % 2 * 8;
            int row = tile / across * PIXELS + in_tile, line = row / width;
            bool there = row < rows, real = line < height && row - line * width < width - 1;
            u64 at = (u64)row * out_channels + column + 8 * lane;
            #pragma unroll
            for (int j = 0; j < COLUMNS / 8; j += 4) {  // each of four threads has two of eight columns; each stores 16 bytes
                u32 y[4] = {0, 0, 0, 0};
                if (added && real) {
                    uint4 four = *(const uint4*)(added + at + 8 * j);
                    y[0] = four.x, y[1] = four.y, y[2] = four.z, y[3] = four.w;
                }
                if (added) turn(y);
                #pragma unroll
                for (int k = 0; k < 4; k++) {
                    float2 more = from_fp16(y[k]), less = from_fp16(*(const u32*)(bias + column + 8 * (j + k) + 2 * lane));
                    const float* sum = &sums[i / 2][4 * (j + k) + 2 * (i % 2)];
                    y[k] = real ? fp16(sum[0] + less.x + more.x, sum[1] + less.y + more.y) : 0;
                }
                turn(y);
                if (there) *(uint4*)(out + at + 8 * j) = make_uint4(y[0], y[1], y[2], y[3]);
            }
        }
    }
}
