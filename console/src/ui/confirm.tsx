import { Button, Group, Modal, Stack, Text } from '@mantine/core';
import { Trans } from '@lingui/react/macro';
import type { ReactNode } from 'react';
import { ShowCall, type Call } from './show-call';

interface ConfirmProps {
  title: ReactNode;
  /** Names what will be destroyed. */
  children: ReactNode;
  action: ReactNode;
  call?: Call;
  isPending: boolean;
  error?: Error | null;
  /** Nothing is destroyed. */
  isSafe?: boolean;
  /** A field of the dialog has no valid value. */
  isInvalid?: boolean;
  onConfirm: () => void;
  onClose: () => void;
}

/** Asks before something is destroyed, or before much is changed at once. */
export function Confirm({
  title,
  children,
  action,
  call,
  isPending,
  error,
  isSafe = false,
  isInvalid = false,
  onConfirm,
  onClose,
}: ConfirmProps) {
  return (
    <Modal opened onClose={onClose} title={title}>
      <Stack gap="md">
        <div>{children}</div>
        {error && (
          <Text c="var(--tg-critical)" role="alert">
            {error.message}
          </Text>
        )}
        <Group justify="space-between">
          {call ? <ShowCall {...call} /> : <span />}
          <Group gap="xs">
            <Button variant="default" onClick={onClose} data-autofocus>
              <Trans>Cancel</Trans>
            </Button>
            <Button color={isSafe ? undefined : 'red.8'} onClick={onConfirm} loading={isPending} disabled={isInvalid}>
              {action}
            </Button>
          </Group>
        </Group>
      </Stack>
    </Modal>
  );
}
