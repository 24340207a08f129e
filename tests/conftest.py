"""Shared fixtures."""

from __future__ import annotations

import jax
import pytest


@pytest.fixture
def x64():
    """64-bit floats inside the test, without touching the global switch."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(params=["float32", "float64"])
def precision(request):
    """The test runs once in JAX's default precision and once in 64 bits."""
    with jax.enable_x64(request.param == "float64"):
        yield request.param


# Left to `make test-all`, so that `make test` takes a quarter of an hour on two cores: each has a
# faster test beside it that would see most faults.
LONG = (
    "multidevice/test_devices.py::test_every_algorithm[IPLA-grouped]",
    "multidevice/test_devices.py::test_every_algorithm[SFLA-grouped]",
    "multidevice/test_devices.py::test_every_algorithm[SOUL-grouped]",
    "_algorithms/test_automatic.py::test_eight_schools[32]",
    "_algorithms/test_automatic.py::test_save_and_load_keep_the_errors",
    "_algorithms/test_automatic.py::test_too_few_steps_say_what_is_moving",
    "_algorithms/test_automatic.py::test_two_parameters_that_only_count_together",
    "_model/test_bad_input.py::test_a_start_takes_a_pair_of_functions_as_its_reference[many]",
    "_model/test_particle_batches.py::test_blocks_of_particles_are_visited_alike[7-network]",
    "project/test_calibrate.py::test_the_command",
    "_fit/test_compare.py::test_observed_says_what_must_agree",
    "_runtime/test_compilation.py::test_k_hat_is_blackjaxs[30]",
    "_runtime/test_compilation.py::test_k_hat_is_blackjaxs[8000]",
    "_algorithms/test_contract.py::test_chunk_size_does_not_matter[float64-grouped-IPLA]",
    "_algorithms/test_contract.py::test_chunk_size_does_not_matter[float64-grouped-SFLA]",
    "_algorithms/test_contract.py::test_chunk_size_does_not_matter[float64-grouped-SOUL]",
    "_algorithms/test_contract.py::test_chunk_size_does_not_matter[float64-plain-IPLA]",
    "_algorithms/test_contract.py::test_chunk_size_does_not_matter[float64-plain-SFLA]",
    "_algorithms/test_contract.py::test_chunk_size_does_not_matter[float64-plain-SOUL]",
    "_algorithms/test_contract.py::test_dead_particles_do_not_poison_theta[IPLA]",
    "_algorithms/test_contract.py::test_dead_particles_do_not_poison_theta[SFLA]",
    "_algorithms/test_contract.py::test_vmap_over_the_step_size[IPLA]",
    "_algorithms/test_contract.py::test_vmap_over_the_step_size[JALAEM-dense]",
    "_algorithms/test_contract.py::test_vmap_over_the_step_size[PGD-adam]",
    "_algorithms/test_contract.py::test_vmap_over_the_step_size[PGD]",
    "_algorithms/test_contract.py::test_vmap_over_the_step_size[SFLA]",
    "_algorithms/test_contract.py::test_vmap_over_the_step_size[SOUL]",
    "_evidence/test_log_evidence.py::test_mode_of_a_model_with_many_latents[600]",
    "cli/test_experiments.py::test_exact_limits_agree_with_scipy_and_with_quadrature",
    "cli/test_experiments.py::test_padded_candidates_are_the_polynomial_models[1]",
    "cli/test_experiments.py::test_padded_candidates_are_the_polynomial_models[5]",
    "_model/test_information.py::test_the_shift_is_the_move_of_the_posterior_mean",
    "models/test_latent_models.py::test_a_generator_learns_to_draw",
    "models/test_latent_models.py::test_item_response_against_quadrature[float64]",
    "_model/test_many_groups.py::test_the_test_sees_weights_of_an_old_theta",
    "_model/test_many_groups.py::test_what_is_computed_in_batches_is_the_same[15]",
    "_model/test_many_groups.py::test_what_is_computed_in_batches_is_the_same[7]",
    "_particles/test_numbers.py::test_large_and_small_scales_in_32_bits[1000000.0]",
    "_particles/test_numbers.py::test_separable_data_have_no_maximum_and_it_is_said",
    "_frontends/test_numpyro.py::test_a_result_has_the_sites_of_its_particles",
    "_particles/test_precision.py::test_the_path_evidence_in_float32[cbpp]",
    "_particles/test_precision.py::test_weights_in_float64_on_a_model_in_float32[False]",
    "_algorithms/test_proposition1.py::test_dense_preconditioner_and_multinomial_resampling",
    "_algorithms/test_proposition1.py::test_grouped_test_sees[caches_not_gathered]",
    "_algorithms/test_proposition1.py::test_grouped_test_sees[no_work]",
    "_algorithms/test_proposition1.py::test_grouped_test_sees[open_segment_dropped]",
    "_algorithms/test_proposition1.py::test_moving_gaussian[d=20-0.0-False]",
    "_algorithms/test_proposition1.py::test_moving_gaussian_test_sees[caches_not_gathered]",
    "_algorithms/test_proposition1.py::test_moving_gaussian_test_sees[open_segment_dropped]",
    "_algorithms/test_proposition1.py::test_other_resampling_schemes[residual]",
    "_algorithms/test_exact_fits.py::test_hierarchical_normal[float32-JALAEM]",
    "_algorithms/test_exact_fits.py::test_hierarchical_normal[float64-IPLA]",
    "_algorithms/test_exact_fits.py::test_hierarchical_normal[float64-PGD]",
    "_algorithms/test_exact_fits.py::test_hierarchical_normal[float64-SFLA]",
    "_algorithms/test_exact_fits.py::test_hierarchical_normal[float64-SOUL]",
    "_starts/test_starts.py::test_a_fit_from_here_has_an_absolute_evidence[float32-Laplace-True]",
    "_starts/test_starts.py::test_a_fit_from_here_has_an_absolute_evidence[float64-Laplace-True]",
    "_starts/test_starts.py::test_the_mode_of_latents_in_very_different_units[float32]",
    "_starts/test_starts.py::test_the_mode_of_latents_in_very_different_units[float64]",
    "_fit/test_tune.py::test_lppd_is_the_mean_log_of_the_weighted_density[student_t_regression]",
    "_algorithms/test_weight_rules.py::test_many_latents_exact_weights_collapse_tempered_ones_do_not",
    "_algorithms/test_weight_rules.py::test_tempering_finds_the_exponent_that_leaves_the_ess_asked_for[float32]",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if item.nodeid.endswith(LONG):
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def cache_is_off_afterwards():
    """For a test that calls `jalax.runtime.compilation_cache`."""
    names = [
        "jax_compilation_cache_dir",
        "jax_persistent_cache_min_compile_time_secs",
        "jax_persistent_cache_min_entry_size_bytes",
    ]
    before = {name: getattr(jax.config, name) for name in names}
    yield
    for name, value in before.items():
        jax.config.update(name, value)
