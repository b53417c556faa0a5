"""The classic, name by name: each has a line in ``docs/classic.md`` and a test that is about it.

Where torch is installed, its sources are read (not imported: one of them needs a library that nobody has): every
public name must be in the tables, and every signature of the same name must be a torch signature.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rendezvous_async import sync
from rendezvous_async.sync import RendezvousParameters, options
from rendezvous_async.sync.registry import make_handler

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "classic.md"
MODULES = {
    "rendezvous.api": "",
    "rendezvous.dynamic_rendezvous": "",
    "rendezvous.c10d_rendezvous_backend": "c10d.",
    "rendezvous.etcd_rendezvous_backend": "etcd.",
    "utils.distributed": "",
    "utils.store": "",
    "rendezvous.registry": "",
    "rendezvous.utils": "",
}
"""Those that are compared, and what the page puts before their functions, which two of them have in common."""

INTERFACE, PARAMS, FROM, BACKEND = (
    f"sync/test_{name}.py" for name in ("interface", "params", "from_backend", "backend")
)
HANDLER, STORE, COLLECTIVES = (f"sync/test_{name}.py" for name in ("handler", "store", "collectives"))
TESTS: dict[str, str] = {
    "RendezvousError": f"{INTERFACE}::test_all_errors_are_rendezvous_errors",
    "RendezvousClosedError": f"{HANDLER}::test_shutdown_by_one_node_closes_for_all",
    "RendezvousTimeoutError": f"{HANDLER}::test_a_join_that_is_not_met_times_out",
    "RendezvousConnectionError": f"{HANDLER}::test_a_server_that_is_not_there_is_a_connection_error",
    "RendezvousStateError": f"{HANDLER}::test_a_damaged_state_is_an_error_until_the_run_is_closed",
    "RendezvousGracefulExitError": f"{HANDLER}::test_a_spare_of_a_closed_run_exits_gracefully",
    "RendezvousHandler": f"{INTERFACE}::test_an_incomplete_subclass_cannot_be_made",
    **{
        f"RendezvousHandler.{name}": f"{INTERFACE}::test_a_handler_of_a_users_own"
        for name in (
            "get_backend", "use_agent_store", "next_rendezvous", "is_closed", "set_closed", "num_nodes_waiting",
            "get_run_id", "shutdown",
        )
    },
    "RendezvousHandlerCreator": f"{PARAMS}::test_the_registry",
    "RendezvousHandlerRegistry": f"{PARAMS}::test_the_registry",
    "RendezvousHandlerRegistry.register": f"{PARAMS}::test_the_registry",
    "RendezvousHandlerRegistry.create_handler": f"{PARAMS}::test_the_registry",
    "rendezvous_handler_registry": f"{PARAMS}::test_a_handler_by_name",
    "RendezvousInfo": f"{INTERFACE}::test_a_handler_of_a_users_own",
    "RendezvousInfo.store": f"{FROM}::test_nodes_meet_on_the_backends_that_they_were_given",
    "RendezvousInfo.rank": f"{HANDLER}::test_nodes_meet_and_share_a_store",
    "RendezvousInfo.world_size": f"{HANDLER}::test_nodes_meet_and_share_a_store",
    "RendezvousInfo.bootstrap_store_info": f"{HANDLER}::test_nodes_meet_and_share_a_store",
    "RendezvousParameters": f"{PARAMS}::test_wrong_counts_of_nodes",
    "RendezvousParameters.get": f"{PARAMS}::test_numbers_and_defaults",
    "RendezvousParameters.get_as_bool": f"{PARAMS}::test_truth_values",
    "RendezvousParameters.get_as_int": f"{PARAMS}::test_numbers_and_defaults",
    **{
        f"RendezvousStoreInfo{name}": f"{STORE}::test_where_workers_find_their_own_store"
        for name in ("", ".MASTER_ADDR_KEY", ".MASTER_PORT_KEY", ".master_addr", ".master_port", ".build")
    },
    "RendezvousBackend": f"{INTERFACE}::test_an_incomplete_subclass_cannot_be_made",
    **{
        f"RendezvousBackend.{name}": f"{INTERFACE}::test_a_backend_of_a_users_own"
        for name in ("name", "get_state", "set_state")
    },
    **{
        f"RendezvousTimeout{name}": f"{PARAMS}::test_timeouts"
        for name in ("", ".join", ".last_call", ".close", ".heartbeat")
    },
    **{
        f"RendezvousSettings{name}": f"{PARAMS}::test_settings_of_the_wrong_type_are_named"
        for name in (
            "", ".run_id", ".min_nodes", ".max_nodes", ".timeout", ".keep_alive_interval", ".keep_alive_max_attempt",
        )
    },
    "DynamicRendezvousHandler": f"{FROM}::test_a_wrong_setting_is_an_error_at_once",
    "DynamicRendezvousHandler.from_backend": f"{FROM}::test_nodes_meet_on_the_backends_that_they_were_given",
    "DynamicRendezvousHandler.settings": f"{FROM}::test_the_settings_are_the_classics",
    "DynamicRendezvousHandler.get_backend": f"{HANDLER}::test_nodes_meet_and_share_a_store",
    "DynamicRendezvousHandler.use_agent_store": f"{HANDLER}::test_nodes_meet_and_share_a_store",
    "DynamicRendezvousHandler.next_rendezvous": f"{HANDLER}::test_a_late_comer_is_counted_and_let_in",
    "DynamicRendezvousHandler.is_closed":
        f"{HANDLER}::test_a_run_that_its_host_closed_stays_closed_while_somebody_remembers",
    "DynamicRendezvousHandler.set_closed": f"{HANDLER}::test_set_closed_is_seen_by_those_who_never_joined",
    "DynamicRendezvousHandler.num_nodes_waiting":
        f"{HANDLER}::test_a_spare_is_not_counted_and_takes_a_place_that_frees",
    "DynamicRendezvousHandler.get_run_id": f"{HANDLER}::test_nodes_meet_and_share_a_store",
    "DynamicRendezvousHandler.shutdown": f"{HANDLER}::test_a_member_that_failed_leaves_and_the_others_go_on",
    "create_handler": f"{FROM}::test_what_create_handler_takes",
    "Token": f"{BACKEND}::test_set_state_replaces_with_the_current_token_only",
    "get_method_name": "torchrun/test_plugin.py::test_rendezvous_events_are_recorded",
    "C10dRendezvousBackend": "torchrun/test_stores.py::test_the_backend_contract_in_a_store_of_torchs",
    "C10dRendezvousBackend.name": f"{BACKEND}::test_there_is_no_state_at_first",
    "C10dRendezvousBackend.get_state": f"{BACKEND}::test_a_store_that_fails_is_a_backend_that_cannot_be_reached",
    "C10dRendezvousBackend.set_state": f"{BACKEND}::test_what_was_written_before_has_another_token",
    "c10d.create_backend": f"{FROM}::test_the_endpoints_of_c10d",
    "c10d.DEFAULT_PORT": f"{PARAMS}::test_where_handlers_meet",
    "EtcdRendezvousBackend": f"{BACKEND}::test_key_prefixes_keep_runs_on_etcd_apart",
    "EtcdRendezvousBackend.name": f"{BACKEND}::test_there_is_no_state_at_first",
    "EtcdRendezvousBackend.get_state": f"{BACKEND}::test_the_state_on_etcd_ends_some_time_after_its_last_write",
    "EtcdRendezvousBackend.set_state": f"{BACKEND}::test_the_next_write_keeps_the_state_on_etcd",
    "etcd.create_backend": f"{FROM}::test_etcd_over_tls",
    "create_c10d_store": f"{STORE}::test_nobody_has_the_store_before_all_are_there",
    "get_free_port": f"{STORE}::test_free_ports",
    "get_socket_with_port": f"{STORE}::test_free_ports",
    "store_timeout": f"{COLLECTIVES}::test_a_timeout_holds_for_a_block",
    "get_all": f"{COLLECTIVES}::test_get_all_waits_for_what_others_set",
    "synchronize": f"{COLLECTIVES}::test_members_tell_each_other",
    "barrier": f"{COLLECTIVES}::test_a_barrier_that_not_all_come_to_names_those_that_did_not",
    "DistStoreError": "torchrun/test_stores.py::test_members_meet_in_a_store_of_torchs",
    "get_rendezvous_handler": f"{PARAMS}::test_a_handler_by_name",
    "parse_rendezvous_endpoint": f"{PARAMS}::test_endpoints",
    "join_timeout": f"{PARAMS}::test_options_of_the_classic_are_whole_positive_seconds",
    "last_call_timeout": f"{PARAMS}::test_a_wrong_time_says_what_it_must_be",
    "close_timeout": f"{PARAMS}::test_none_is_the_default_of_the_others",
    "heartbeat_timeout": f"{PARAMS}::test_a_wrong_time_says_what_it_must_be",
    "keep_alive_interval": f"{PARAMS}::test_an_option_that_must_be_there_is_not_none",
    "keep_alive_max_attempt": f"{PARAMS}::test_a_wrong_count_of_keep_alives",
    "store_type": f"{PARAMS}::test_the_type_of_c10ds_store",
    "is_host": f"{FROM}::test_who_hosts_the_store_of_c10d",
    "read_timeout": f"{FROM}::test_wrong_options_of_c10d",
    "protocol": f"{FROM}::test_wrong_options_of_etcd",
    **dict.fromkeys(("ssl_cert", "ssl_cert_key", "ca_cert"), f"{PARAMS}::test_etcd_over_tls_is_never_lost"),
}  # fmt: skip
"""For each line of the page's tables, a test that would fail if it were not so."""

ERRORS: dict[str, tuple[str, ...]] = {
    "RendezvousParameters.__init__ ValueError": (f"{PARAMS}::test_wrong_counts_of_nodes",) * 3,
    "RendezvousParameters.get_as_bool ValueError": (f"{PARAMS}::test_numbers_and_defaults",),
    "RendezvousParameters.get_as_int ValueError": (f"{PARAMS}::test_numbers_and_defaults",),
    "RendezvousHandlerRegistry.register ValueError": (f"{PARAMS}::test_the_registry",) * 2,
    "RendezvousHandlerRegistry.create_handler ValueError": (f"{PARAMS}::test_the_registry",),
    "RendezvousHandlerRegistry.create_handler RuntimeError": (f"{PARAMS}::test_the_registry",),
    "RendezvousTimeout._set_timeouts ValueError": (f"{PARAMS}::test_timeouts",),
    "_BackendRendezvousStateHolder.sync RendezvousStateError": (
        f"{HANDLER}::test_a_damaged_state_is_an_error_until_the_run_is_closed",
    ),
    "_DistributedRendezvousOpExecutor.run RendezvousClosedError": (
        f"{HANDLER}::test_shutdown_by_one_node_closes_for_all",
    ),
    "_DistributedRendezvousOpExecutor.run RendezvousTimeoutError": (
        f"{HANDLER}::test_a_join_that_is_not_met_times_out",
    ),
    "_RendezvousJoinOp.__call__ RendezvousGracefulExitError": (
        f"{HANDLER}::test_a_spare_of_a_closed_run_exits_gracefully",
    ),
    "DynamicRendezvousHandler.__init__ ValueError": (f"{FROM}::test_a_wrong_setting_is_an_error_at_once",) * 3,
    "create_handler TypeError": (f"{FROM}::test_a_wrong_option_is_an_error_at_once",) * 2,
    "C10dRendezvousBackend.__init__ ValueError": (f"{BACKEND}::test_a_run_has_a_name",),
    "C10dRendezvousBackend._call_store RendezvousConnectionError": (
        f"{BACKEND}::test_a_store_that_fails_is_a_backend_that_cannot_be_reached",
    ),
    "C10dRendezvousBackend._decode_state RendezvousStateError": (f"{BACKEND}::test_a_damaged_state_is_an_error",),
    "_create_tcp_store ValueError": (f"{FROM}::test_wrong_options_of_c10d",),
    "_create_tcp_store RendezvousConnectionError": (f"{FROM}::test_who_hosts_the_store_of_c10d",),
    "_create_file_store RendezvousError": (f"{FROM}::test_a_file_without_an_endpoint_is_a_directory_of_ones_own",),
    "_create_file_store RendezvousConnectionError": (f"{FROM}::test_a_path_that_cannot_be_had_is_a_connection_error",),
    "create_backend ValueError": (f"{FROM}::test_wrong_options_of_c10d",),
    "EtcdRendezvousBackend.__init__ ValueError": (f"{BACKEND}::test_a_run_has_a_name",),
    "EtcdRendezvousBackend.get_state RendezvousConnectionError": (f"{BACKEND}::test_a_backend_whose_server_is_gone",),
    "EtcdRendezvousBackend.set_state RendezvousConnectionError": (f"{BACKEND}::test_a_backend_whose_server_is_gone",),
    "EtcdRendezvousBackend._decode_state RendezvousStateError": (f"{BACKEND}::test_a_damaged_state_is_an_error",),
    "_create_etcd_client ValueError": (f"{FROM}::test_wrong_options_of_etcd",) * 2,
    "_create_etcd_client RendezvousConnectionError": (f"{FROM}::test_etcd_that_cannot_be_reached",),
    "create_c10d_store ValueError": (f"{STORE}::test_ports_that_cannot_be_had",),
    "create_c10d_store RuntimeError": (f"{STORE}::test_ports_that_cannot_be_had",),
    "_check_full_rank TimeoutError": (f"{STORE}::test_workers_that_do_not_come",),
    "get_socket_with_port RuntimeError": (f"{STORE}::test_no_port_is_left",),
    "barrier AssertionError": (f"{COLLECTIVES}::test_names_of_ranks_need_a_rank",),
    "barrier DistStoreError": (f"{COLLECTIVES}::test_a_barrier_that_not_all_come_to_names_those_that_did_not",),
    "parse_rendezvous_endpoint ValueError": (f"{PARAMS}::test_wrong_endpoints",) * 2,
}
"""For each error that torch's modules raise, by who raises which, a test that ours is raised in the same case."""

OTHERWISE = {
    "DynamicRendezvousHandler.__init__": "takes what is ours; the classic's takes private classes",
    "DynamicRendezvousHandler.from_backend": "keep-alives every 1 s, of which 5 may fail",
    "EtcdRendezvousBackend.__init__": "takes an endpoint where the classic takes a client",
    "create_handler": "all but one have a default, since it takes params alone as well",
}
"""Signatures that are not the classic's, with the reason; the page says so too."""


def rows() -> Iterator[list[str]]:
    """Yield the cells of each line of the page's tables, headings left out."""
    for line in PAGE.read_text().splitlines():
        if line.startswith("| `"):
            yield [cell.strip() for cell in line.strip("|").split(" | ")]


def code(cell: str) -> str:
    return str(re.findall(r"`([^`]+)`", cell)[0])


def find(name: str) -> Any:
    thing: Any = sync
    for part in name.split("."):
        fields = inspect.get_annotations(thing) if inspect.isclass(thing) else {}
        thing = fields[part] if part in fields else getattr(thing, part)
    return thing


def test_the_page_has_names_that_are_there() -> None:
    for _, ours, *others in rows():
        if len(others) == 1 and ours != "none":
            assert find(code(ours)) is not None


def test_every_line_of_the_page_has_its_test() -> None:
    names = [code(classic) for classic, *_ in rows()]
    assert len(names) == len(set(names))
    assert sorted(names) == sorted(TESTS)


@pytest.mark.parametrize("test", sorted({*TESTS.values(), *(test for tests in ERRORS.values() for test in tests)}))
def test_the_tests_that_are_named_are_there(test: str) -> None:
    file, name = test.split("::")
    tree = ast.parse((ROOT / "tests" / file).read_text())
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_the_defaults_that_the_page_says_are_ours() -> None:
    settings = make_handler(RendezvousParameters("memory", "defaults", "run", 1, 1)).settings
    params = RendezvousParameters("c10d", "", "run", 1, 1)
    actual: dict[str, object] = {
        f"{name}_timeout": int(getattr(settings.timeout, name).total_seconds())
        for name in ("join", "last_call", "close", "heartbeat")
    }
    actual |= {
        "keep_alive_interval": int(settings.keep_alive_interval.total_seconds()),
        "keep_alive_max_attempt": settings.keep_alive_max_attempt,
        "store_type": options.store_type(params),
        "read_timeout": int(options.read_timeout(params).total_seconds()),
        "protocol": "http" if options.find_endpoint("etcd", params).scheme == "etcd" else "https",
    }
    said = {code(row[0]): row[2] for row in rows() if len(row) == 4}
    assert {name: value for name, value in said.items() if value != "none"} == {
        name: str(value) for name, value in actual.items()
    }
    given = options.endpoint_options("tcp", params, options.find_endpoint("tcp", params))
    assert given == {"connect_timeout": 60.0}
    assert (settings.timeout.regroup.total_seconds(), settings.ranks) == (3, "sticky")


# What torch has


@cache
def source_of(module: str) -> ast.Module:
    """Return a module of torch's, parsed and not imported."""
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.submodule_search_locations is None:
        pytest.skip("no torch")
    (root,) = torch.submodule_search_locations
    return ast.parse((Path(root) / "distributed" / "elastic" / f"{module.replace('.', '/')}.py").read_text())


def is_public(name: str) -> bool:
    return not name.startswith("_") and name not in ("logger", "log")


def names_in(body: list[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    for node in body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) if is_public(name):
                yield name, node
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)) if is_public(name):
                yield name, node
            case _:
                pass


def errors_in(node: ast.AST, where: str = "") -> Iterator[str]:
    """Yield who raises which error, for all but what is only raised again, and checks for the sake of types."""
    for child in ast.iter_child_nodes(node):
        inside = where
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            inside = f"{where}.{child.name}".lstrip(".")
        match child:
            case ast.Raise(exc=ast.Call(func=ast.Name(id=error)) | ast.Name(id=error)) if error[0].isupper():
                if inside != "DynamicRendezvousHandler.next_rendezvous":
                    yield f"{inside} {error}"
            case _:
                pass
        yield from errors_in(child, inside)


def test_every_error_of_torchs_modules_has_its_test() -> None:
    private = ("_parse_rendezvous_config", "_PeriodicTimer")
    raised = Counter(error for module in MODULES for error in errors_in(source_of(module)))
    wanted = {error: count for error, count in raised.items() if not error.startswith(private)}
    assert {error: len(tests) for error, tests in ERRORS.items()} == wanted


@pytest.mark.parametrize("module", MODULES)
def test_the_page_has_every_public_name_of_torchs_module(module: str) -> None:
    wanted: list[str] = []
    for name, node in names_in(source_of(module).body):
        wanted.append(name if isinstance(node, ast.ClassDef) else MODULES[module] + name)
        if isinstance(node, ast.ClassDef):
            wanted += [f"{name}.{member}" for member, _ in names_in(node.body)]
    assert wanted
    assert [name for name in wanted if name not in TESTS] == []


def test_the_page_has_every_option_of_torchs_modules() -> None:
    read: set[str] = set()
    for module in MODULES:
        for node in ast.walk(source_of(module)):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="params")), args=[ast.Constant(value=name), *_]):
                    read.add(str(name))
                case ast.Call(func=ast.Name(id="_get_timeout"), args=[_, ast.Constant(value=str(name))]):
                    read.add(f"{name}_timeout")
                case _:
                    pass
    assert read == {code(row[0]) for row in rows() if len(row) == 4}


def parameters_of(function: ast.FunctionDef) -> list[tuple[str, Any]]:
    """Return the names and defaults of parameters, ``self`` left out; defaults that are no constants as their text."""
    arguments = function.args.args
    defaults = [None] * (len(arguments) - len(function.args.defaults)) + list(function.args.defaults)
    found = []
    for argument, default in zip(arguments, defaults, strict=True):
        value = inspect.Parameter.empty if default is None else eval(ast.unparse(default), {})  # numbers and None
        found.append((argument.arg, value))
    return [(name, value) for name, value in found if name not in ("self", "cls")]


def callables_in(body: list[ast.stmt]) -> Iterator[ast.FunctionDef]:
    """Yield public functions and methods, and constructors; no properties."""
    for node in body:
        if not isinstance(node, ast.FunctionDef) or not (is_public(node.name) or node.name == "__init__"):
            continue
        if "property" not in map(ast.unparse, node.decorator_list):
            yield node


def signatures() -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    """Yield the name of everything in torch's modules that can be called, and its parameters."""
    for module, prefix in MODULES.items():
        body = source_of(module).body
        for function in callables_in(body):
            yield prefix + function.name, parameters_of(function)
        for node in body:
            if isinstance(node, ast.ClassDef) and is_public(node.name):
                yield from ((f"{node.name}.{each.name}", parameters_of(each)) for each in callables_in(node.body))


def test_every_signature_is_one_of_torchs() -> None:
    """Ours take what torch's take, in the same order and with the same defaults; they may take more after it."""
    different = set()
    for name, wanted in signatures():
        if name == "get_method_name":
            continue
        ours = find({"create_c10d_store": "create_store"}.get(name, name.removesuffix(".__init__")))
        parameters = inspect.signature(ours).parameters.values()
        if [(p.name, p.default) for p in parameters if p.name != "self"][: len(wanted)] != wanted:
            different.add(name)
    assert different == OTHERWISE.keys()
