"""Environment variables that change which program runs, or what else a program runs.

`CI=1 npm test` is `npm test`; `PATH=/tmp/x npm test` is not, whatever rules say of `npm test`.
"""

from app.text.bash.name_lists import names

_NAMES = names("""
    BASHOPTS BASH_ENV BASH_LOADABLES_PATH BROWSER CC CDPATH CLASSPATH CXX DISPLAY EDITOR ENV EXECIGNORE FPATH GCONV_PATH
    GLOBIGNORE GREP_OPTIONS HOME HOSTALIASES IFS JAVA_TOOL_OPTIONS JDK_JAVA_OPTIONS KUBECONFIG LESSCLOSE LESSOPEN LESS
    LOCPATH MAKEFILES MAKEFLAGS NLSPATH OPENSSL_CONF PATH PERLLIB PROMPT_COMMAND PS0 PS1 PS4 RIPGREP_CONFIG_PATH
    RSYNC_RSH CVS_RSH SHELL SHELLOPTS TAR_OPTIONS TERMINFO TMPDIR VISUAL XDG_CONFIG_HOME _JAVA_OPTIONS
    """)


_BEGINNINGS = tuple(
    names("""
    BASH_FUNC_ CARGO_ COMP_ DOCKER_ DYLD_ GIT_ GO GUIX_ LD_ MAN NIX_ NODE_ NPM_CONFIG_ npm_config_ PERL5 PIP_ PYTHON
    READLINE_ RUBY RUST SSH_ SUDO_ SYSTEMD_ UV_ YARN_ ZDOTDIR
    """)
)


_ENDINGS = ("PAGER", "EDITOR", "_COMMAND", "_EXEC", "_HOOK", "_PRELOAD")


def changes_what_runs(name: str) -> bool:
    """Whether somebody who may run a command may still not run it with this variable set."""
    name = name.split("[", 1)[0]
    return name in _NAMES or name.startswith(_BEGINNINGS) or name.endswith(_ENDINGS)
