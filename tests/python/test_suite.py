"""The judge of `make suite` finds what it is there to find."""

import suite

LISTED = {("tn", "test_named"), ("masquerade", "test_log")}
GOOD = {
    "gloo": {"test_a": "passed", "test_named": "passed", "test_log": "passed", "test_cuda": "skipped"},
    "tn": {"test_a": "passed", "test_named": "skipped", "test_log": "passed"},
    "masquerade": {"test_a": "passed", "test_named": "passed", "test_log": "failed"},
}


def judged(run=None, test=None, outcome=None):
    outcomes = {name: dict(tests) for name, tests in GOOD.items()}
    if outcome == "missing":
        del outcomes[run][test]
    elif run is not None:
        outcomes[run][test] = outcome
    return suite.judge(2, outcomes, LISTED)


def test_what_is_listed_may_differ():
    assert judged() == []
    assert judged("gloo", "test_b", "failed") == []


def test_what_is_not_listed_may_not():
    for run in ("tn", "masquerade"):
        for outcome in ("failed", "skipped", "missing"):
            assert judged(run, "test_a", outcome) == [f"world 2: test_a passes on gloo and is {outcome} in run {run}"]


def test_what_is_listed_passes_in_the_other_run():
    assert any("does not pass in run masquerade" in line for line in judged("masquerade", "test_named", "failed"))
    assert any("does not pass in run tn" in line for line in judged("tn", "test_log", "skipped"))


def test_a_list_that_is_out_of_date():
    assert "need not be in" in judged("tn", "test_named", "passed")[0]


def test_gloo_that_passes_nothing_compares_nothing():
    assert suite.judge(2, {"gloo": {"test_a": "failed"}, "tn": {}, "masquerade": {}}, LISTED)


def test_the_page_is_read():
    by_name = suite.listed()
    assert len(by_name) == 23 and ("tn", "test_get_future") in by_name and ("masquerade", "test_ddp_logging_data_cpu") in by_name
