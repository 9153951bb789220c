// Makes PyTorch accept tensors on `cuda` where no GPU is, so that code written for a GPU can run on fake tensors, which have shapes and no data.
//
// Three registrations are enough: a device guard (which device and stream are current), the CUDA hooks (is there a device, how many), and a timer that
// DistributedDataParallel's reducer asks for. None of them computes anything. torch looks the hooks up once when it is imported, so this library is
// loaded before. A build for CUDA registers its own three when libtorch_cuda is loaded: ours of the hooks and of the timer have the higher priority, and
// the guard is put in the place of its own afterwards, when torch has been imported.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

namespace {

c10::DeviceIndex device_count = 1;
thread_local c10::DeviceIndex current = 0;

c10::DeviceIndex exchange(c10::DeviceIndex next) {
  const auto before = current;
  current = next;
  return before;
}

struct FakeGuard final : public c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType kind = c10::DeviceType::CUDA;

  c10::DeviceType type() const override { return kind; }
  c10::Device exchangeDevice(c10::Device next) const override { return {kind, exchange(next.index())}; }
  c10::Device getDevice() const override { return {kind, current}; }
  void setDevice(c10::Device next) const override { current = next.index(); }
  void uncheckedSetDevice(c10::Device next) const noexcept override { current = next.index(); }
  c10::DeviceIndex deviceCount() const noexcept override { return device_count; }

  // Work on fake tensors is done when it is asked for, so one stream does; the Python side keeps track of which one the program means.
  c10::Stream getStream(c10::Device device) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, c10::Device(kind, device.index() < 0 ? current : device.index()));
  }
  c10::Stream getNewStream(c10::Device device, int) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override { return getStream(stream.device()); }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(c10::DeviceIndex) const override {}

  void record(void**, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, c10::DeviceIndex) const noexcept override {}
  void synchronizeEvent(void*) const override {}
};

FakeGuard guard;

struct FakeHooks : public at::CUDAHooksInterface {
  explicit FakeHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return device_count; }
  int getNumGPUs() const override { return device_count; }
  c10::DeviceIndex current_device() const override { return current; }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(c10::DeviceIndex next) const override { current = next; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex next) const override { return exchange(next); }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex next) const override { return exchange(next); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override { return at::detail::getDefaultCPUGenerator(); }
  bool isPinnedPtr(const void*) const override { return false; }
  void deviceSynchronize(c10::DeviceIndex) const override {}
};

}  // namespace

namespace at {
using FakeHooksOfCuda = FakeHooks;
C10_REGISTER_TYPED_CLASS_WITH_PRIORITY(CUDAHooksRegistry, "CUDAHooks", c10::REGISTRY_PREFERRED, FakeHooksOfCuda)
}  // namespace at

namespace c10d {
namespace {
struct FakeTimer : public Timer {
  explicit FakeTimer(c10::Device) {}
  std::optional<int64_t> measureDifference(Event start, Event end) override { return getTimeRef(end) - getTimeRef(start); }
};
C10_REGISTER_TYPED_CLASS_WITH_PRIORITY(TimerRegistry, c10::kCUDA, c10::REGISTRY_PREFERRED, FakeTimer)
}  // namespace
}  // namespace c10d

// How many devices there are. Called before torch is imported.
extern "C" void everybyte_count_fake_cuda(int count) { device_count = static_cast<c10::DeviceIndex>(count); }

// The guard. Called when torch has been imported.
extern "C" void everybyte_install_fake_cuda() { c10::impl::registerDeviceGuard(c10::DeviceType::CUDA, &guard); }
