#pragma once
// How a module picks one of its kernels: by the environment variable when it is set and not empty, otherwise
// the last of `kernels` that this CPU can run. A kernel has name() and supported().
#include <cstdlib>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace kvarter {

template <class Kernel>
std::vector<std::string> supported_names(std::span<const Kernel* const> kernels) {
  std::vector<std::string> names;
  for (const Kernel* kernel : kernels)
    if (kernel->supported()) names.emplace_back(kernel->name());
  return names;
}

template <class Kernel>
const Kernel& choose_kernel(const char* variable, std::span<const Kernel* const> kernels) {
  const char* value = std::getenv(variable);
  const std::string wanted = value ? value : "";
  const Kernel* best = nullptr;
  for (const Kernel* kernel : kernels)
    if (kernel->supported() && (wanted.empty() || wanted == kernel->name())) best = kernel;
  if (best) return *best;
  std::string usable;
  for (const std::string& each : supported_names(kernels)) usable += (usable.empty() ? "" : ", ") + each;
  throw std::runtime_error(std::string(variable) + " is '" + wanted +
                           "', expected a kernel this CPU can run (" + usable +
                           "); unset it to get the fastest");
}

}  // namespace kvarter
