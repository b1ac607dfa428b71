import { Alert, Button, Radio, Stack, Text } from '@mantine/core';
import { Plural, Trans, useLingui } from '@lingui/react/macro';
import { useEffect, useId, useRef, useState } from 'react';
import { ApiError } from '../api/client';
import { fieldLabel } from '../api/schema-variants';
import { changeKey, merge, valueText, type Change, type Choice, type Step } from './merge';

export const isVersionConflict = (error: unknown) => error instanceof ApiError && error.status === 412;

/** The version that somebody else has stored, and what can become of it. */
export interface OtherVersion<T> {
  value: T;
  /** Stores a value over this version. Rejected with 412 if there is a newer one. */
  save: (value: T) => Promise<unknown>;
  /** Edits this version from now on; what was typed is discarded. */
  load: () => unknown;
}

export interface VersionConflictProps<T> {
  /** The version that was edited. */
  base: T;
  /** What is to be saved. */
  mine: T;
  /** Reads the stored version. */
  read: () => Promise<OtherVersion<T>>;
  /** The other version with only my change; default: `mine`. */
  mineOver?: (theirs: T) => T;
}

/** Two people have changed the same object: shows the second what differs, and keeps the changes of both. */
export function VersionConflict<T>({ base, mine, read, mineOver }: VersionConflictProps<T>) {
  const { t } = useLingui();
  const [theirs, setTheirs] = useState<OtherVersion<T>>();
  const [choices, setChoices] = useState<ReadonlyMap<string, Choice>>(new Map());
  const [pending, setPending] = useState<'read' | 'merge' | 'load' | 'overwrite'>();
  const [error, setError] = useState<Error>();
  const run = async (action: NonNullable<typeof pending>, step: () => unknown) => {
    setPending(action);
    setError(undefined);
    try {
      await step();
    } catch (failure) {
      setError(failure as Error);
      // They have saved again.
      if (isVersionConflict(failure)) await readTheirs();
    } finally {
      setPending(undefined);
    }
  };
  const readTheirs = async () => setTheirs(await read());
  const start = useRef(() => run('read', readTheirs));
  useEffect(() => void start.current(), []);
  // It is at the end of a form, which may be longer than the screen.
  const panel = useRef<HTMLDivElement>(null);
  useEffect(() => void panel.current?.scrollIntoView({ block: 'nearest' }), [theirs]);
  const { value, changes } = theirs ? merge(base, mine, theirs.value, choices) : { value: mine, changes: [] };
  const conflicts = changes.filter(({ by }) => by === 'both');
  const left = conflicts.filter((change) => !choices.has(changeKey(change))).length;
  const button = (action: NonNullable<typeof pending>, step: (version: OtherVersion<T>) => unknown) => ({
    loading: pending === action,
    disabled: theirs === undefined || pending !== undefined,
    onClick: () => theirs && void run(action, () => step(theirs)),
  });
  return (
    <Alert
      ref={panel}
      className="version-conflict"
      color="yellow"
      variant="light"
      role="alert"
      title={<Trans>Somebody else changed this meanwhile</Trans>}
    >
      <Stack gap="sm" align="stretch">
        <Text size="sm">
          <Trans>Nothing was saved, and nothing is lost.</Trans>{' '}
          {theirs && conflicts.length === 0 ? (
            <Trans>You changed different fields, so that both changes can be kept.</Trans>
          ) : (
            <Trans>Choose for each field that both of you changed; your other changes and theirs are kept.</Trans>
          )}
        </Text>
        {changes.length > 0 && (
          <ul className="merge-changes" tabIndex={0} aria-label={t`Changed fields`}>
            {[...conflicts, ...changes.filter(({ by }) => by !== 'both')].map((change) => (
              <ChangedField
                key={changeKey(change)}
                change={change}
                choice={choices.get(changeKey(change))}
                onChoice={(choice) => setChoices((previous) => new Map(previous).set(changeKey(change), choice))}
              />
            ))}
          </ul>
        )}
        {left > 0 && (
          <Text size="sm" c="dimmed">
            <Plural value={left} one="# field is left to choose." other="# fields are left to choose." />
          </Text>
        )}
        <div className="row wrap">
          <Button
            {...button('merge', ({ save }) => save(value as T))}
            disabled={theirs === undefined || pending !== undefined || left > 0}
          >
            <Trans>Save the changes of both</Trans>
          </Button>
          <Button variant="default" {...button('load', ({ load }) => load())}>
            <Trans>Load their version</Trans>
          </Button>
          <Button
            variant="default"
            {...button('overwrite', (version) => version.save(mineOver?.(version.value) ?? mine))}
          >
            <Trans>Save mine over it</Trans>
          </Button>
        </div>
        {error && !isVersionConflict(error) && (
          <Text size="sm" c="var(--tg-critical)">
            {error.message}
          </Text>
        )}
      </Stack>
    </Alert>
  );
}

/** A field that was changed, with the choice between the two values if both have changed it. */
function ChangedField({
  change,
  choice,
  onChoice,
}: {
  change: Change;
  choice: Choice | undefined;
  onChoice: (choice: Choice) => void;
}) {
  const { t } = useLingui();
  const name = useId();
  const { path, base, mine, theirs, by } = change;
  const label = path.length === 0 ? t`Value` : path.map(stepLabel).join(' › ');
  const field = path.findLast((step) => typeof step === 'string') ?? '';
  const kept = {
    mine: { name: <Trans>Yours</Trans>, text: valueText(mine, field) },
    theirs: { name: <Trans>Theirs</Trans>, text: valueText(theirs, field) },
    merged: { name: <Trans>Both</Trans>, text: valueText(change.merged, field) },
  };
  const radio = (of: Choice) => (
    <Radio
      size="xs"
      name={name}
      label={
        <span className="merge-value">
          <b>{kept[of].name}</b> {kept[of].text}
        </span>
      }
      checked={choice === of}
      onChange={() => onChoice(of)}
    />
  );
  return (
    <li>
      {by === 'both' ? (
        <fieldset className="plain-fieldset">
          <legend>{label}</legend>
          {radio('mine')}
          {radio('theirs')}
          <div className="merge-value dimmed">
            <Trans>Before</Trans> {valueText(base, field)}
          </div>
        </fieldset>
      ) : (
        <>
          <div className="merge-field">{label}</div>
          <div className="merge-value">
            <b>{kept[by].name}</b> {kept[by].text}
          </div>
          <div className="merge-value dimmed">
            <Trans>Before</Trans> {valueText(base, field)}
          </div>
        </>
      )}
    </li>
  );
}

function stepLabel(step: Step): string {
  if (typeof step === 'string') return fieldLabel(step);
  return typeof step === 'number' ? String(step + 1) : step.item;
}
