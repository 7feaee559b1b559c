// SPDX-License-Identifier: Apache-2.0
// Where the drop-in libraries are: beside our own executable, so that a build tree works as it is.
#pragma once

#include <string>

namespace weir::cli {

/// "<folder of this executable>/../lib/weir". Whether it is there is another question.
std::string library_folder();

}  // namespace weir::cli
