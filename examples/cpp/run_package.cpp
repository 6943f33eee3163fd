// Run an AOTInductor package that contains LEM's kernel without Python: run_package MODEL.pt2 BATCH STEPS CHANNELS
//
// The package calls the operator lem::sequence. Python code registers it where `import lem.nn` has run; this program
// registers it in C++, on the C interface of the kernel (native/lem.h). It feeds one input of ascending numbers from -1
// to 1 and prints the outputs.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/library.h>

#include <iostream>

#include "lem.h"

using at::Tensor;
using Maybe = std::optional<Tensor>;

static std::tuple<Tensor, Tensor, Tensor, Tensor> sequence(
    const Tensor& u, const Tensor& weight_u, const Tensor& weight_y, const Tensor& weight_z, const Maybe& bias,
    const Tensor& y_0, const Tensor& z_0, const Maybe& mask, const Maybe& lengths, double dt,
    const std::optional<c10::List<double>>& clip, bool reverse, int64_t keep, int64_t segment, const Maybe& elapsed,
    const Maybe& resets, const Maybe& y_start, const Maybe& z_start) {
    TORCH_CHECK(keep == LEM_KEEP_NOTHING, "lem::sequence: export the model under torch.no_grad() in float32 or float64");
    std::vector<Tensor> alive;  // the tensors that the kernel reads
    auto read = [&](const Maybe& tensor) -> const void* {
        if (!tensor) return nullptr;
        return alive.emplace_back(tensor->contiguous()).const_data_ptr();
    };
    lem_problem p{};
    p.struct_bytes = sizeof p;
    p.item_bytes = u.element_size();
    p.steps = u.size(0), p.batch = u.size(1), p.inputs = u.size(2);
    p.hidden = weight_z.size(1), p.outputs = weight_z.size(0);
    p.gated = weight_y.size(0) != p.hidden;
    p.reverse = reverse, p.threads = at::get_num_threads(), p.segment = segment, p.dt = dt;
    if (clip) p.clipped = 1, p.clip_low = clip->get(0), p.clip_high = clip->get(1);
    p.u = read(u), p.u_time = p.batch * p.inputs, p.u_row = p.inputs;
    p.weight_u = read(weight_u), p.weight_y = read(weight_y), p.weight_z = read(weight_z), p.bias = read(bias);
    p.y_0 = read(y_0), p.z_0 = read(z_0), p.mask = read(mask), p.elapsed = read(elapsed);
    p.lengths = static_cast<const int64_t*>(read(lengths)), p.resets = static_cast<const uint8_t*>(read(resets));
    p.y_start = read(y_start), p.z_start = read(z_start);
    Tensor out = at::empty({p.steps, p.batch, p.outputs}, u.options());
    Tensor y_n = at::empty_like(y_0, at::MemoryFormat::Contiguous), z_n = at::empty_like(z_0, at::MemoryFormat::Contiguous);
    p.out = out.mutable_data_ptr(), p.y_n = y_n.mutable_data_ptr(), p.z_n = z_n.mutable_data_ptr();
    p.work_bytes = lem_work_bytes(&p, 0);
    TORCH_CHECK(p.work_bytes >= 0, "lem::sequence: a size is out of range");
    Tensor work = at::empty({p.work_bytes}, u.options().dtype(at::kByte));  // torch aligns memory to 64 bytes
    p.work = work.mutable_data_ptr();
    TORCH_CHECK(lem_forward(&p) == LEM_OK, "lem::sequence: an argument is out of range");
    return {out, y_n, z_n, at::empty({0}, u.options().dtype(at::kByte))};
}

TORCH_LIBRARY(lem, library) {
    library.def(
        "sequence(Tensor u, Tensor weight_u, Tensor weight_y, Tensor weight_z, Tensor? bias, Tensor y_0, Tensor z_0, "
        "Tensor? mask, Tensor? lengths, float dt, float[]? clip, bool reverse, int keep, int segment, "
        "Tensor? elapsed=None, Tensor? resets=None, Tensor? y_start=None, Tensor? z_start=None) -> "
        "(Tensor out, Tensor y_n, Tensor z_n, Tensor saved)");
}
TORCH_LIBRARY_IMPL(lem, CPU, library) { library.impl("sequence", sequence); }

int main(int argc, char** argv) {
    if (argc != 5) {
        std::cerr << "usage: run_package MODEL.pt2 BATCH STEPS CHANNELS\n";
        return 2;
    }
    int64_t batch = std::stoll(argv[2]), steps = std::stoll(argv[3]), channels = std::stoll(argv[4]);
    torch::inductor::AOTIModelPackageLoader model(argv[1]);
    Tensor series = at::linspace(-1, 1, batch * steps * channels).reshape({batch, steps, channels});
    for (const Tensor& output : model.run({series})) {
        Tensor flat = output.to(at::kDouble).contiguous().flatten();
        std::cout.precision(9);
        for (int64_t i = 0; i < flat.numel(); i++) std::cout << flat.const_data_ptr<double>()[i] << " ";
        std::cout << "\n";
    }
}
