# SPDX-License-Identifier: Apache-2.0
# Sourced by tests/run.sh and examples/quickstart.sh.

# need PACKAGE[:COMMAND]... installs through apt what is missing. With a COMMAND, having it in the
# PATH is enough, whoever installed it. Where there is no dpkg the libraries are left to Meson.
need() {
  local item package command missing=()
  for item in "$@"; do
    package=${item%%:*}
    command=${item#*:}
    if [ "$item" != "$package" ]; then
      command -v "$command" > /dev/null 2>&1 || missing+=("$package")
    elif command -v dpkg-query > /dev/null 2>&1; then
      [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2> /dev/null)" = installed ] ||
        missing+=("$package")
    fi
  done
  [ ${#missing[@]} -eq 0 ] && return 0

  local as_root=()
  if ! command -v apt-get > /dev/null 2>&1; then
    echo "missing: ${missing[*]} (Debian's names); there is no apt-get here, please install them" >&2
    return 1
  fi
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo > /dev/null 2>&1; then
      echo "missing: ${missing[*]}; run as root: apt-get install ${missing[*]}" >&2
      return 1
    fi
    as_root=(sudo)
  fi
  echo "installing ${missing[*]}" >&2
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update > /dev/null
  if ! "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
      apt-get install -y --no-install-recommends "${missing[@]}" > /dev/null; then
    echo "apt-get could not install ${missing[*]}; is there a network?" >&2
    return 1
  fi
}
