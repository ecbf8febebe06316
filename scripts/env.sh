# Sourced, not run: makes the environment ready and sets $python to its interpreter.
#
# The caller has set $root, the repository. All that is installed comes from requirements.lock, checked
# against its hashes. Once .venv carries the stamp of this lock, the cost is a checksum of two files.
# Whoever changes .venv holds .venv.lock, and writes the stamp last: a set-up that was killed is begun again.
# shellcheck shell=sh

# What the caller's shell happens to carry must not decide what is imported; and without bytecode every process of every
# cluster would compile the product anew.
unset PYTHONHOME PYTHONPATH PYTHONDONTWRITEBYTECODE

tidelog_venv=$root/.venv
tidelog_unfinished=$tidelog_venv/.tidelog-unfinished
python=$tidelog_venv/bin/python

tidelog_say() {
  printf 'tidelog: %s\n' "$*" >&2
}

# The root is part of the stamp, because an environment does not survive being moved.
tidelog_stamp() {
  printf '%s ' "$root"
  cat "$root/requirements.lock" "$root/pyproject.toml" | cksum
}

tidelog_is_ready() {
  [ -x "$python" ] && [ "$(cat "$tidelog_venv/.tidelog-stamp" 2>/dev/null)" = "$1" ]
}

tidelog_has_uv() {
  uv --version >/dev/null 2>&1
}

# Prints "3.12.1 yes" when that command is a Python ("no": it cannot make an environment that has pip).
tidelog_probe() {
  "$1" -c '
import sys
try:
    import ensurepip, venv
    able = "yes"
except ImportError:
    able = "no"
sys.stdout.write("%d.%d.%d %s\n" % (sys.version_info[:3] + (able,)))' 2>/dev/null
}

# Sets $tidelog_base to a Python that is new enough, or says what was found and fails.
tidelog_find_python() {
  tidelog_found= tidelog_unable=
  for tidelog_base in "${PYTHON:-}" python3.13 python3.12 python3.14 python3.11 python3 python; do
    [ -n "$tidelog_base" ] || continue
    tidelog_answer=$(tidelog_probe "$tidelog_base") || continue
    tidelog_version=${tidelog_answer% *}
    case $tidelog_version in
      3.[0-9].* | 3.10.* | [012].*)
        tidelog_found="$tidelog_found${tidelog_found:+, }$tidelog_base is $tidelog_version"
        continue
        ;;
    esac
    case $tidelog_answer in
      *yes) return 0 ;;
    esac
    if tidelog_has_uv; then
      return 0
    fi
    tidelog_unable=${tidelog_unable:-$tidelog_version}
  done
  if [ -n "$tidelog_unable" ]; then
    tidelog_short=${tidelog_unable%.*}
    tidelog_say "Python $tidelog_unable is here, but cannot make environments: on Debian or Ubuntu" \
      "run 'sudo apt install python$tidelog_short-venv', or install uv"
  else
    tidelog_say "needs Python 3.11 or newer; found: ${tidelog_found:-none}." \
      "Install one, or name it: PYTHON=/path/to/python3.12 $0"
  fi
  return 1
}

# An environment that was left half-made, or whose Python is gone or too old, is made anew; any other is kept.
tidelog_make_venv() {
  if [ -e "$tidelog_unfinished" ] || ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    rm -rf "$tidelog_venv"
    mkdir "$tidelog_venv" || return 1
    : >"$tidelog_unfinished"
    "$tidelog_base" -m venv --without-pip "$tidelog_venv" || return 1
  fi
  : >"$tidelog_unfinished"
  rm -f "$tidelog_venv/.tidelog-stamp"
}

# Two steps, because hashes forbid `-e .` beside them. The build backend is in the lock, so that nothing
# is fetched outside of it.
tidelog_install() {
  if tidelog_has_uv; then
    uv pip install --quiet --python "$python" --require-hashes -r "$root/requirements.lock" &&
      uv pip install --quiet --python "$python" --no-deps --no-build-isolation -e "$root"
    return
  fi
  "$python" -m pip --version >/dev/null 2>&1 || "$python" -m ensurepip --default-pip >/dev/null || return 1
  "$python" -m pip --disable-pip-version-check install --quiet --no-input --require-hashes \
    -r "$root/requirements.lock" &&
    "$python" -m pip --disable-pip-version-check install --quiet --no-input --no-deps \
      --no-build-isolation -e "$root"
}

# The lock is the kernel's: it belongs to descriptor 9 and ends with the last process that holds it, so
# none can be left behind. Python takes it because not every system has a flock command.
tidelog_lock() {
  exec 9>"$root/.venv.lock" || return 1
  "$tidelog_base" -c '
import fcntl, sys
try:
    fcntl.flock(9, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    sys.stderr.write("tidelog: waiting for another set-up of .venv\n")
    fcntl.flock(9, fcntl.LOCK_EX)' 9>&9
}

tidelog_set_up() {
  tidelog_wanted=$(tidelog_stamp) || return 1
  if tidelog_is_ready "$tidelog_wanted"; then
    return 0
  fi
  tidelog_find_python || return 1
  tidelog_lock || return 1
  if ! tidelog_is_ready "$tidelog_wanted"; then
    tidelog_say "setting up .venv with Python $tidelog_version (once, a minute or less)"
    if ! { tidelog_make_venv && tidelog_install; }; then
      tidelog_say "the set-up did not finish; what went wrong stands above, and running this again starts over"
      return 1
    fi
    printf '%s\n' "$tidelog_wanted" >"$tidelog_venv/.tidelog-stamp.new" &&
      mv "$tidelog_venv/.tidelog-stamp.new" "$tidelog_venv/.tidelog-stamp" &&
      rm -f "$tidelog_unfinished"
  fi
  exec 9>&-
}

tidelog_set_up || exit 1
