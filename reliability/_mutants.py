"""The classic mistakes, as edits of one place in src/jalax each, and the tests to ask first."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    name: str
    file: str  # below src/jalax
    old: str  # occurs exactly once in the file
    new: str
    tests: str  # files, or tests in them, below tests: asked one after the other


JALA = "_algorithms/jala_em.py"
STEPS = "_algorithms/test_golden.py _algorithms/test_proposition1.py"

MUTANTS = [
    # --- the move and its weight -----------------------------------------------------------------
    Mutant(
        "theta_k for theta_{k+1} in the weight",
        JALA,
        "        visit = evaluate(model, theta, particles)\n        increment",
        "        visit = evaluate(model, state.theta, particles)\n        increment",
        STEPS,
    ),
    Mutant(
        "the sign of the increment",
        JALA,
        "jnp.where(alive, state.log_weights + increment, -jnp.inf)",
        "jnp.where(alive, state.log_weights - increment, -jnp.inf)",
        STEPS,
    ),
    Mutant(
        "the sign of the work terms",
        "_particles/langevin.py",
        "return (new.log_joint - old.log_joint) + net",
        "return (new.log_joint - old.log_joint) - net",
        STEPS,
    ),
    Mutant(
        "the sign of the work terms, in transport",
        "_particles/langevin.py",
        "return (new.log_joint - old.log_joint) + net",
        "return (new.log_joint - old.log_joint) - net",
        "_algorithms/test_proposition1.py",
    ),
    Mutant(
        "h/4 for h/2 in alpha",
        "_particles/langevin.py",
        "jnp.asarray(step_size, d.dtype) / 2 * pg",
        "jnp.asarray(step_size, d.dtype) / 4 * pg",
        STEPS,
    ),
    Mutant(
        "noise of variance h, not 2h",
        "_particles/langevin.py",
        "x + h * g + jnp.sqrt(2 * h) * xi",
        "x + h * g + jnp.sqrt(h) * xi",
        STEPS,
    ),
    Mutant(
        "noise from another generator",
        "_runtime/normals.py",
        "(17, 29, 16, 24)",
        "(17, 29, 16, 25)",
        "_runtime/test_normals.py",
    ),
    Mutant(
        "a digit of the inverse error function",
        "_runtime/normals.py",
        "0.018244034490990785",
        "0.018244034490980785",
        "_runtime/test_normals.py",
    ),
    Mutant(
        "noise that two particles share, in the kernel of a GPU",
        "_particles/gpu_kernel.py",
        "pl.program_id(0).astype(jnp.uint32) * np.uint32(BLOCK)",
        "pl.program_id(0).astype(jnp.uint32)",
        "_particles/test_gpu_kernel.py",
    ),
    Mutant(
        "another group's diagonal, in the kernel of a GPU",
        "_particles/gpu_kernel.py",
        "i // (num * blocks) * blocks + i % blocks",
        "i // num * blocks + i % blocks",
        "_particles/test_gpu_kernel.py",
    ),
    Mutant(
        "the backward kernel with the forward gradient",
        "_particles/langevin.py",
        "backwards = work(new.grad_x, back,",
        "backwards = work(old.grad_x, back,",
        STEPS,
    ),
    Mutant(
        "the backward path in the forward direction",
        "_particles/langevin.py",
        "back = jax.tree.map(jnp.negative, path)",
        "back = path",
        STEPS,
    ),
    Mutant(
        "the shift left out of the backward kernel",
        "_particles/langevin.py",
        "    if shift is not None:\n        particles = jax.tree.map(jnp.add, particles, shift)\n"
        "    new = jax.tree.map(one, particles, drift, noise)\n",
        "    new = jax.tree.map(one, particles, drift, noise)\n"
        "    if shift is not None:\n        new = jax.tree.map(jnp.add, new, shift)\n",
        STEPS + " _algorithms/test_automatic.py",
    ),
    Mutant(
        "the preconditioner left out of the drift",
        "_particles/langevin.py",
        "drift = apply(preconditioner, grad_x)",
        "drift = grad_x",
        STEPS,
    ),
    Mutant(
        "P for its root in the noise",
        "_particles/langevin.py",
        "noise = apply_root(preconditioner, xi)",
        "noise = apply(preconditioner, xi)",
        STEPS,
    ),
    Mutant(
        "the same noise at every step",
        "_fit/loop.py",
        "key_k = jax.random.fold_in(key, state.step)",
        "key_k = key",
        "_algorithms/test_golden.py _algorithms/test_exact_fits.py _algorithms/test_contract.py",
    ),
    Mutant(
        "one key for the move and for resampling",
        JALA,
        "key_move, key_resample = jax.random.split(key)",
        "key_move = key_resample = key",
        STEPS,
    ),
    # --- weights, resampling, evidence -----------------------------------------------------------
    Mutant(
        "weights not reset at resampling",
        "_particles/resampling.py",
        "log_weights=jnp.zeros_like(cloud.log_weights),",
        "log_weights=cloud.log_weights,",
        STEPS,
    ),
    Mutant(
        "what the resampled segment gained is not banked",
        "_particles/resampling.py",
        "banked = cloud.log_evidence_base + weight_math.log_mean_exp(cloud.log_weights)",
        "banked = cloud.log_evidence_base",
        STEPS,
    ),
    Mutant(
        "the open segment dropped from the evidence",
        "_particles/weight_math.py",
        "return jnp.sum(base + log_mean_exp(log_weights))",
        "return jnp.sum(base)",
        STEPS,
    ),
    Mutant(
        "log of the sum for log of the mean",
        "_particles/weight_math.py",
        "jnp.log(jnp.mean(shifted, axis=-1))",
        "jnp.log(jnp.sum(shifted, axis=-1))",
        STEPS,
    ),
    Mutant(
        "mean log-weight for log mean weight",
        "_particles/weight_math.py",
        "return top[..., 0] + jnp.log(jnp.mean(shifted, axis=-1))",
        "return jnp.mean(log_weights, axis=-1) + 0 * top[..., 0]",
        STEPS,
    ),
    Mutant(
        "caches not gathered with the ancestors",
        "_particles/resampling.py",
        "particles, cached = exchange.gather(layout, (cloud.particles, cloud.cached), ancestors)",
        "particles, cached = exchange.gather(layout, cloud.particles, ancestors), cloud.cached",
        STEPS,
    ),
    Mutant(
        "a uniform, not a weighted, mean of the gradients",
        "_model/evaluation.py",
        "visit.pull(weights.astype(visit.log_joint.dtype))",
        "visit.pull(weight_math.normalise(0 * weights).astype(visit.log_joint.dtype))",
        STEPS,
    ),
    Mutant(
        "ESS from the weights, not their squares",
        "_particles/weight_math.py",
        "squares = jnp.sum(jnp.square(weights), axis=-1)",
        "squares = jnp.sum(weights, axis=-1)",
        STEPS,
    ),
    Mutant(
        "resampling at points that leave the last particle out",
        "_particles/resampling.py",
        "points = (jnp.arange(num_samples, dtype=weights.dtype) + offset) / num_samples",
        "points = (jnp.arange(num_samples, dtype=weights.dtype) + offset) / (num_samples + 1)",
        STEPS,
    ),
    Mutant(
        "a dead particle keeps its weight",
        JALA,
        "jnp.where(alive, state.log_weights + increment, -jnp.inf)",
        "jnp.where(alive, state.log_weights + increment, state.log_weights)",
        "_fit/test_callbacks.py",
    ),
    Mutant(
        "an evidence that is relative to the start, shown as absolute",
        JALA,
        "jnp.asarray(cloud.log_evidence is None),",
        "jnp.zeros((), bool),",
        "_algorithms/test_exact_fits.py _fit/test_result.py _starts/test_starts.py",
    ),
    Mutant(
        "softened weights pass for exact ones",
        "_algorithms/weight_rules.py",
        "    ess: float = 0.8\n    exact = False\n",
        "    ess: float = 0.8\n    exact = True\n",
        "_algorithms/test_weight_rules.py",
    ),
    Mutant(
        "a fit that went back keeps the evidence of its broken path",
        "_fit/conclusion.py",
        "if known.retries > 0:",
        "if known.retries < 0:",
        "_particles/test_numbers.py",
    ),
    Mutant(
        "a wall is not noticed",
        JALA,
        "outside=state.memory.outside + after.outside,",
        "outside=state.memory.outside,",
        "_particles/test_numbers.py",
    ),
    Mutant(
        "large log p rounded with small terms before their difference (float32)",
        "_particles/langevin.py",
        "return (new.log_joint - old.log_joint) + net",
        "return (new.log_joint + net) - old.log_joint",
        "_particles/test_precision.py",
    ),
    # --- groups and minibatches ------------------------------------------------------------------
    Mutant(
        "scores not centred per group",
        "_model/information.py",
        "centred = scores - each[:, None]",
        "centred = scores - jnp.mean(each, axis=0)",
        "_model/test_information.py",
    ),
    Mutant(
        "the covariance of few weighted scores not corrected by 1 / (1 - sum w^2)",
        "_model/information.py",
        "spread = weights / jnp.maximum(1 - jnp.sum(weights**2, axis=1), 1e-6)[:, None]",
        "spread = weights",
        "_model/test_information.py",
    ),
    Mutant(
        "Louis' missing information added, not subtracted",
        "_model/information.py",
        "share, turn = jnp.linalg.eigh(root.T @ (complete - missing) @ root)",
        "share, turn = jnp.linalg.eigh(root.T @ (complete + missing) @ root)",
        "_model/test_information.py _algorithms/test_automatic.py",
    ),
    Mutant(
        "the gradient of a minibatch not scaled to all groups",
        JALA,
        "more = 1.0 if num_groups is None else num_groups / model.num_groups",
        "more = 1.0",
        "_model/test_many_groups.py",
    ),
    Mutant(
        "a group that was left out not weighed to the new theta",
        "_algorithms/minibatches.py",
        "log_weights = jnp.where(alive, state.log_weights + gain, -jnp.inf)",
        "log_weights = jnp.where(alive, state.log_weights, -jnp.inf)",
        "_model/test_many_groups.py",
    ),
    Mutant(
        "the last, smaller batch forgotten",
        "_particles/trees.py",
        "        total = jax.tree.map(jnp.add, total, rest)\n",
        "        del rest\n",
        "_model/test_particle_batches.py _model/test_many_groups.py",
    ),
    # --- evidence at a fixed theta ---------------------------------------------------------------
    Mutant(
        "replicates averaged in log Z",
        "_evidence/rounds.py",
        "return top + np.log(mean), variance, float(freedom)",
        "return log_z.mean(axis=0), variance, float(freedom)",
        "_evidence/test_log_evidence.py::test_replicates_are_averaged_in_z",
    ),
    Mutant(
        "Student-t draws weighed by a Gaussian density",
        "_reference/references.py",
        "        if math.isinf(dof):\n            value = -size / 2",
        "        if True:\n            value = -size / 2",
        "_evidence/test_log_evidence.py",
    ),
    Mutant(
        "the determinant of the proposal's scale left out",
        "_reference/references.py",
        "return (value - self.mode.log_det_root[:, None]).astype(vectors.dtype)",
        "return value.astype(vectors.dtype)",
        "_evidence/test_log_evidence.py",
    ),
    Mutant(
        "the tempered increment with the wrong sign",
        "_reference/tempering.py",
        "            increment = (new - old) * log_ratio(here)\n",
        "            increment = (old - new) * log_ratio(here)\n",
        "_evidence/test_log_evidence.py::test_tempered_legs_have_the_exact_evidence",
    ),
    Mutant(
        "Metropolis moves that accept everything",
        "_reference/tempering.py",
        "accept = jnp.log(uniform) < log_ratio",
        "accept = log_ratio > -jnp.inf",
        "_evidence/test_log_evidence.py::test_tempered_legs_have_the_exact_evidence",
    ),
    Mutant(
        "a normal quantile for few degrees of freedom",
        "_evidence/log_evidence.py",
        "finite = np.isfinite(self.degrees_of_freedom)",
        "finite = False",
        "_evidence/test_log_evidence.py::test_the_interval_has_the_quantile_of_its_degrees_of_freedom",
    ),
    Mutant(
        "the variance of the log not added back",
        "_evidence/rounds.py",
        "return float((self.groups + self.variance / 2).sum())",
        "return float(self.groups.sum())",
        "_evidence/test_log_evidence.py::test_half_the_variance_is_added_back_in_every_group",
    ),
    # --- constraints, standard errors, comparison ------------------------------------------------
    Mutant(
        "the Jacobian of a constrained latent forgotten",
        "_frontends/constrained.py",
        'return log_joint(theta, to_user(latent, "latent", x), data) + sum(log_dets)',
        'return log_joint(theta, to_user(latent, "latent", x), data)',
        "_frontends/test_constrained.py",
    ),
    Mutant(
        "standard errors without the delta method",
        "_evidence/uncertainty.py",
        'variance = np.einsum("ip,pq,iq->i", self.jacobian, filled, self.jacobian)',
        "variance = np.diagonal(filled).copy()",
        "_model/test_information.py::test_standard_errors_on_the_users_scale_are_those_of_the_delta_method",
    ),
    Mutant(
        "the prior of theta left out of the full evidence",
        "_fit/compare.py",
        "return float(prior(flat) + shift + size - log_det / 2)",
        "return float(shift + size - log_det / 2)",
        "_fit/test_compare.py::test_the_full_evidence_of_a_gaussian_model_is_exact",
    ),
    # --- the peers -------------------------------------------------------------------------------
    Mutant(
        "IPLA's noise in theta without 1/N",
        "_algorithms/ipla.py",
        "jnp.sqrt(2 * c / num_particles) * xi",
        "jnp.sqrt(2 * c) * xi",
        "_algorithms/test_golden.py::test_ipla",
    ),
    Mutant(
        "PGD's particles at the new theta",
        "_algorithms/pgd.py",
        "proposal = langevin.move(key, state.particles, old.grad_x, gamma).particles",
        "grad_x = evaluate(model, theta, state.particles).grad_x\n"
        "        proposal = langevin.move(key, state.particles, grad_x, gamma).particles",
        "_algorithms/test_golden.py::test_pgd",
    ),
    Mutant(
        "SOUL's chain begun afresh from its first state",
        "_algorithms/soul.py",
        "last = jax.tree.map(lambda leaf: leaf[:, -1:], state.particles)",
        "last = jax.tree.map(lambda leaf: leaf[:, :1], state.particles)",
        "_algorithms/test_golden.py::test_soul",
    ),
    Mutant(
        "SFLA's latent on the slow time scale",
        "_algorithms/sfla.py",
        "key_move, state.particles, old.grad_x, gamma / self.epsilon",
        "key_move, state.particles, old.grad_x, gamma",
        "_algorithms/test_golden.py::test_sfla",
    ),
    # --- files -----------------------------------------------------------------------------------
    Mutant(
        "the checksum not compared",
        "_runtime/files.py",
        "if _checksum(content) != expected:",
        "if False:",
        "_fit/test_checkpoint.py::test_the_checksum_guards_the_numbers",
    ),
    Mutant(
        "a checkpoint of another key accepted",
        "_fit/checkpoint.py",
        '"key": [str(jax.random.key_impl(run.key)), key],',
        '"key": [str(jax.random.key_impl(run.key))],',
        "_fit/test_checkpoint.py::test_a_file_of_another_fit_is_refused",
    ),
    Mutant(
        "a resumed fit forgets its history",
        "_fit/checkpoint.py",
        "            run.records = [records]\n",
        "            pass\n",
        "_fit/test_checkpoint.py::test_checkpoint_and_resume_equals_the_uninterrupted_run",
    ),
    Mutant(
        "one shift of the points for all groups",
        "_reference/group_points.py",
        "keys = jax.random.split(key, model.num_groups)",
        "keys = jnp.broadcast_to(key, (model.num_groups,))",
        "_algorithms/test_scoring.py::test_errors_of_the_evidence_are_those_of_its_spread",
    ),
    Mutant(
        "points weighed without the determinant of their reference",
        "_reference/group_points.py",
        "log_q = jnp.sum(law.log_density(z), axis=1) - log_det",
        "log_q = jnp.sum(law.log_density(z), axis=1)",
        "_algorithms/test_scoring.py::test_normal_groups_have_closed_forms",
    ),
    Mutant(
        "the missing information left out of Scoring's",
        "_reference/group_points.py",
        "centred = scores - score\n",
        "centred = 0 * scores\n",
        "_algorithms/test_scoring.py::test_normal_groups_have_closed_forms",
    ),
    Mutant(
        "points at the modes of an old theta",
        "_reference/group_points.py",
        "MODE_STEPS = 50",
        "MODE_STEPS = 0",
        "_reference/test_points.py _algorithms/test_scoring.py",
    ),
    Mutant(
        "points of a normal law where the posterior has the tails of its prior",
        "_reference/points.py",
        "return STUDENT if dimension",
        "return Law(norm.ppf, norm.logpdf) if dimension",
        "_algorithms/test_scoring.py::test_the_tails_of_a_prior_are_covered",
    ),
]
