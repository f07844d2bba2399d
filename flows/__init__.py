"""Prefect flows: ``plan`` answers one plan config, ``nightly`` replans those that changed."""

from flows.environment import prepare

prepare()
