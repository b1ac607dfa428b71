import { Alert, Button, Stack, Text } from '@mantine/core';
import { Trans } from '@lingui/react/macro';
import { useState } from 'react';
import { ApiError } from '../api/client';

export const isVersionConflict = (error: unknown) => error instanceof ApiError && error.status === 412;

interface VersionConflictProps {
  /** Replaces what was typed by the stored version. */
  onLoad: () => Promise<unknown>;
  /** Saves what was typed over the stored version. */
  onOverwrite: () => Promise<unknown>;
}

/** Two people have changed the same object: asks the second which version applies. */
export function VersionConflict({ onLoad, onOverwrite }: VersionConflictProps) {
  const [pending, setPending] = useState<'load' | 'overwrite'>();
  const [error, setError] = useState<Error>();
  const run = async (choice: 'load' | 'overwrite') => {
    setPending(choice);
    setError(undefined);
    try {
      await (choice === 'load' ? onLoad() : onOverwrite());
    } catch (failure) {
      setError(failure as Error);
    } finally {
      setPending(undefined);
    }
  };
  return (
    <Alert color="yellow" variant="light" role="alert" title={<Trans>Somebody else changed this meanwhile</Trans>}>
      <Stack gap="xs" align="flex-start">
        <Text size="sm">
          <Trans>Nothing was saved, and nothing is lost. Choose which version applies.</Trans>
        </Text>
        <div className="row wrap">
          <Button
            variant="default"
            loading={pending === 'load'}
            disabled={pending !== undefined}
            onClick={() => void run('load')}
          >
            <Trans>Load their version</Trans>
          </Button>
          <Button
            variant="default"
            loading={pending === 'overwrite'}
            disabled={pending !== undefined}
            onClick={() => void run('overwrite')}
          >
            <Trans>Save mine over it</Trans>
          </Button>
        </div>
        {error && (
          <Text size="sm" c="var(--tg-critical)">
            {error.message}
          </Text>
        )}
      </Stack>
    </Alert>
  );
}
