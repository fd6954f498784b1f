#include "kvarter/hash.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "bindings.h"
#include "convert.h"

namespace kvarter::bindings {

namespace {

// Extras out of a sequence of (unit, tag, offset, bytes), sorted by unit; the order within a unit stays.
class Extras {
 public:
  explicit Extras(const std::optional<py::sequence>& items) {
    if (!items) return;
    for (py::handle item : *items) {
      if (!PyTuple_Check(item.ptr()) || PyTuple_GET_SIZE(item.ptr()) != 4)
        type_error("expected a tuple (unit, tag, offset, bytes) as an extra", item);
      const auto extra = py::reinterpret_borrow<py::tuple>(item);
      owners_.emplace_back(extra[3]);
      extras_.push_back({integer(extra[0], std::numeric_limits<std::uint64_t>::max(), "an extra's unit"),
                         static_cast<std::uint8_t>(integer(extra[1], 255, "an extra's tag")),
                         static_cast<std::uint32_t>(integer(
                             extra[2], std::numeric_limits<std::uint32_t>::max(), "an extra's offset")),
                         owners_.back().span()});
    }
    std::ranges::stable_sort(extras_, {}, &Extra::unit);
  }
  std::span<const Extra> span() const { return extras_; }

 private:
  std::vector<Bytes> owners_;
  std::vector<Extra> extras_;
};

Digest digest_from(py::handle object, const char* what) {
  const Bytes bytes(object);
  if (bytes.span().size() != 32)
    throw py::value_error(std::string(what) + " has " + std::to_string(bytes.span().size()) +
                          " bytes, expected 32");
  Digest digest;
  std::copy_n(bytes.span().begin(), 32, digest.begin());
  return digest;
}

py::bytes to_bytes(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

std::uint32_t unit_size(py::handle unit_tokens) {
  return static_cast<std::uint32_t>(
      integer(unit_tokens, std::numeric_limits<std::uint32_t>::max(), "unit_tokens"));
}

py::array_t<std::uint8_t> digests_for(const Tokens& tokens, std::uint32_t unit) {
  return py::array_t<std::uint8_t>({unit ? tokens.span().size() / unit : 0, std::size_t{32}});
}

py::array_t<std::uint8_t> chain(py::object ids, py::object unit_tokens, py::object previous,
                                std::optional<py::sequence> items) {
  const Tokens tokens(ids);
  const Extras extras(items);
  const std::uint32_t unit = unit_size(unit_tokens);
  const Digest from = digest_from(previous, "root");
  auto digests = digests_for(tokens, unit);
  std::uint8_t* out = digests.mutable_data();
  py::gil_scoped_release release;
  chain_digests(tokens.span(), unit, from, extras.span(), out);
  return digests;
}

std::vector<py::array_t<std::uint8_t>> chain_many(py::sequence sequences, py::object unit_tokens,
                                                  py::sequence roots, std::optional<py::sequence> items) {
  const std::size_t count = sequences.size();
  if (roots.size() != count || (items && items->size() != count))
    throw py::value_error("found " + std::to_string(count) + " sequences, " + std::to_string(roots.size()) +
                          " roots and " + (items ? std::to_string(items->size()) : "no") +
                          " lists of extras, expected as many of each");
  const std::uint32_t unit = unit_size(unit_tokens);
  std::vector<std::unique_ptr<Tokens>> tokens;
  std::vector<Extras> extras;
  std::vector<TokenChain> chains;
  std::vector<py::array_t<std::uint8_t>> digests;
  for (std::size_t i = 0; i < count; ++i) {
    tokens.push_back(std::make_unique<Tokens>(py::object(sequences[i])));
    extras.emplace_back(items ? py::object((*items)[i]).cast<std::optional<py::sequence>>() : std::nullopt);
    digests.push_back(digests_for(*tokens[i], unit));
    chains.push_back({tokens[i]->span(), digest_from(py::object(roots[i]), "a root"), extras[i].span(),
                      digests[i].mutable_data()});
  }
  py::gil_scoped_release release;
  chain_digests(chains, unit);
  return digests;
}

}  // namespace

void register_hash(py::module_& m) {
  m.def(
      "chain_root", [] { return to_bytes(root()); },
      "The digest before the first unit of every sequence: 32 bytes.");
  m.def("chain_digests", &chain, py::arg("tokens"), py::arg("unit_tokens"), py::arg("root"),
        py::arg("extras") = py::none(), R"(TokenChain digests of every full unit of `tokens` after `root`.

tokens: ids, as a C-contiguous uint32 buffer (numpy array, array('I'); not copied), an int64 one, or a
    sequence of ints.
unit_tokens: tokens per hash unit.
root: the digest before the first unit, 32 bytes: `chain_root()`, or the last digest so far when extending.
extras: (unit, tag, offset, bytes) tuples: what else a unit depends on. Tags: 1 multimodal item hash, 2 cache
    salt, 3 prompt-embedding digest, 4 engine-defined. Offsets count tokens in the unit. Units in any order; the
    items of one unit are hashed in the order given.

Returns uint8[len(tokens) // unit_tokens, 32]. Raises ValueError or TypeError saying what was found and expected.
Thread-safe; the GIL is released while hashing, and a borrowed buffer must not change meanwhile.)");
  m.def("chain_many", &chain_many, py::arg("sequences"), py::arg("unit_tokens"), py::arg("roots"),
        py::arg("extras") = py::none(),
        R"(`chain_digests` of several sequences, up to four of them interleaved.

sequences, roots and extras (or None) are as long as each other. Returns a list of uint8[n, 32].)");
  m.def(
      "tail_digest",
      [](py::object previous, py::object ids, std::optional<py::sequence> items) {
        const Tokens tokens(ids);
        const Extras extras(items);
        return to_bytes(tail_digest(digest_from(previous, "previous"), tokens.span(), extras.span()));
      },
      py::arg("previous"), py::arg("tokens"), py::arg("extras") = py::none(),
      R"(The digest of a partial tail: of the tokens after the last full unit, whose digest is `previous`.

tokens: at least one, as in `chain_digests`. extras: as there; every unit is 0. Returns 32 bytes.)");
  m.def(
      "sha256", [](py::object data) { return to_bytes(sha256(Bytes(data).span())); }, py::arg("data"),
      "SHA-256 of a contiguous buffer: 32 bytes.");
  m.def(
      "xxh3_64",
      [](py::object data) {
        const Bytes bytes(data);
        py::gil_scoped_release release;
        return xxh3_64(bytes.span());
      },
      py::arg("data"), "XXH3-64 (seed 0) of a contiguous buffer, as an int.");
  m.def(
      "hash_kernels",
      [] {
        py::dict names;
        names["sha256"] = sha256_kernel_name();
        names["xxh3"] = xxh3_kernel_name();
        return names;
      },
      "The kernels in use, by hash. Raises RuntimeError when KVARTER_SHA256 or KVARTER_XXH3 names one this "
      "CPU lacks.");
  m.def(
      "usable_hash_kernels",
      [] {
        py::dict names;
        names["sha256"] = sha256_kernel_names();
        names["xxh3"] = xxh3_kernel_names();
        return names;
      },
      "The kernels this CPU can run, by hash, slowest first: the values of KVARTER_SHA256 and KVARTER_XXH3.");
}

}  // namespace kvarter::bindings
